"""Pseudonyms for people and machines: the same name always gets the same one.

User names, home folders and e-mail addresses become `user1`, `/home/user1`, `mail1@example.org`. A user name that is
also a technical word, one of our own pages, programs and schemas, is replaced only where a login stands.

Pseudonyms of machines keep the structure: equal addresses stay equal, and one subnet stays one subnet, for IPv4, IPv6
and MAC. In an IPv4 address, a bit in which all addresses seen under one prefix agree becomes 0; the other bits stay. So
two addresses share exactly the prefix they shared before, whatever the netmask, and private addresses stay private. The
last octet stays, so that `.1`, the network's `.0` and its broadcast can still be told apart; bits behind a netmask that
a text names stay as well.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import struct
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING

from runbook.files.address import is_ip, is_loopback
from runbook.files.node_sets import expand
from runbook.model.text_search import KnownNames, TextSpan, is_inside_word

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# --- technical words ---------------------------------------------------------------------------------------------

_TECHNICAL_WORD_PATTERNS = (re.compile(r"[a-z][a-z0-9]+"), re.compile(r"[a-z]{2,}"))
_TEXT_FILE_SUFFIXES = (".md", ".py", ".j2", ".txt")
ORDINARY_WORDS = frozenset(
    """data dataset datasets model models home homes scratch tmp temp common team lib src app apps opt build builds
    trainer checkpoint checkpoints project projects share public guest work workspace software libs torch node nodes
    test tests admin user users gpu gpus local shared default logs jobs batch web mail ftp store media video audio
    photo game games""".split()
)

_DEVICE_NAME = re.compile(r"(?:gpu|cpu|cuda|rank|mlx|ib|eth|eno|ens|bond|nvme|tty|pts)[0-9]+")


def is_technical_word(name: str) -> bool:
    """Whether a user's name, in lower case, is a technical word, with or without a number behind it: `gpu7`,
    `worker3`."""
    return name.rstrip("0123456789") in technical_words() or name in technical_words()


def is_common_host_name(name: str) -> bool:
    """Whether a host's name, in lower case, is a technical word or a device's name, and so identifies no host. A number
    makes a word the name of a host, as in `gn7`, except in names of devices, such as `gpu7`."""
    return name in technical_words() if name.isalpha() else _DEVICE_NAME.fullmatch(name) is not None


@cache
def technical_words() -> frozenset[str]:
    """All technical words, in lower case: ORDINARY_WORDS and the words of our own files. Takes about fifty
    milliseconds, once."""
    found = set(ORDINARY_WORDS)
    for text in _package_texts(resources.files("runbook")):
        found.update(*(pattern.findall(text.lower()) for pattern in _TECHNICAL_WORD_PATTERNS))
    return frozenset(found)


def _package_texts(folder: Traversable) -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir() and one.name == "collect":
            continue  # its docstrings have names of people as examples
        if one.is_dir():
            yield from _package_texts(one)
        elif one.name.endswith(_TEXT_FILE_SUFFIXES):
            yield one.read_text(encoding="utf-8")


# --- people ---------------------------------------------------------------------------------------------------------

SYSTEM_ACCOUNTS = frozenset(
    """root ubuntu debian centos fedora rocky almalinux alma rhel suse arch alpine ec2-user azureuser opc vagrant
    cloud-user nobody daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats
    systemd-network systemd-resolve systemd-timesync systemd-journal messagebus syslog sshd postfix chrony ntp
    polkitd rpc rpcuser statd nfsnobody dbus tss uuidd tcpdump landscape lxd docker containerd nvidia-persistenced
    munge slurm conda runner builder jenkins linuxbrew circleci travis vsts""".split()
)
"""Accounts that come with a system. They are not replaced: they identify nobody, and a pseudonym would hide facts."""

_HOME_FOLDER = re.compile(r"(?:/(?:home|Users)/|[A-Za-z]:[\\/]+Users[\\/]+)(?P<name>\w[\w.@+-]*)")
_FULL_NAME_HOME_FOLDER = re.compile(
    r"[A-Za-z]:[\\/]+Users[\\/]+(?P<name>(?P<first>\w[\w.@+-]*)(?: [\w.@+-]+){1,3})(?=[\\/])"
)
"""A home on Windows that has a full name: `C:\\Users\\Jane Doe\\`."""
_MAIL_ADDRESS = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,64}@(?P<host>(?:[A-Za-z0-9-]{1,63}\.){1,10}(?P<top>[A-Za-z]{2,}))(?![\w-])"
)
_NON_MAIL_TOP_DOMAINS = frozenset(
    "service socket target slice scope timer mount device path swap conf py json yml yaml so log".split()
)
_NON_MAIL_HOSTS = ("openssh.com", "libssh.org", "lysator.liu.se", "example.org", "example.com")
# A shorter name is not looked for between underscores: in `rmem_max`, `max` is hardly a person.
_MIN_UNDERSCORED_NAME_CHARACTERS = 5

_LOGIN_NAME = r"(?P<name>[A-Za-z0-9_][\w.-]{0,63})"
_LOGIN_PATTERNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # Fields: `user=gpu`, `"username": "gpu"`, `Owner: gpu`, `LOGNAME=gpu`, `user:gpu:rwx`, and options.
        (
            r"(?i:user|login|owner|logname|account|acct)(?i:_?name|_?id"
            rf"|s)?[\"']{{0,2}}[ \t]{{0,2}}[=:][ \t]{{0,2}}[\"'(]{{0,2}}{_LOGIN_NAME}"
        ),
        (
            r"(?:--user|--login|--owner|\bsudo(?: -[A-Za-z]+)? -u|\bssh -l|\bchown(?: -R)?"
            rf"|\bsu(?: -l?| --login)?)[ =]+{_LOGIN_NAME}"
        ),
        # Sentences of sshd, sudo, PAM and cron.
        rf"(?i:for|by|of|as|sorry,|invalid|unknown) user [`'\"]?{_LOGIN_NAME}",
        rf"(?i:logged in as|login as|owned by)(?: user)?:? [`'\"]?{_LOGIN_NAME}",
        rf"\b(?:Accepted|Failed) \S+ for {_LOGIN_NAME} from\b",
        rf"\bsudo(?:\[\d+\])?: +{_LOGIN_NAME} : ",
        rf"(?<![\w.-]){_LOGIN_NAME} is not (?:in the sudoers|allowed to)",
        rf"[=,]\d+\({_LOGIN_NAME}\)",  # id
        rf"\b{_LOGIN_NAME}\(uid=\d",
        rf"\({_LOGIN_NAME}\) CMD ",
        # Columns: ls -l (owner, then group), ps, who, passwd, group, and our own list of processes.
        rf"[bcdlps-][rwxsStT-]{{9}}[.+@]? +\d+ +{_LOGIN_NAME}[ \t]",
        rf"[bcdlps-][rwxsStT-]{{9}}[.+@]? +\d+ +[\w.-]+ +{_LOGIN_NAME}[ \t]",
        rf"^{_LOGIN_NAME} +\d+ +\d+(?:\.\d+)? +\d+(?:\.\d+)? +\S+ +\S",
        rf"^{_LOGIN_NAME} +(?:pts/|tty|:\d|console\b)",
        rf"^{_LOGIN_NAME}:[x*!]?:\d*:",
        rf"^[ \t]*\d+ {_LOGIN_NAME} (?:[A-Zt] \[| *(?:rt|-?\d+) +-?\d+ )",
        # Places: `~gpu`, folders that are called by their owners, and `gpu@node-a`.
        rf"(?<![\w~./-])~{_LOGIN_NAME}(?=[/\s\"':,;)]|$)",
        rf"[/\\](?:homes?|Users|users?|mail|crontabs|media)[/\\]+{_LOGIN_NAME}",
        (
            rf"(?<![\w.+@/-]){_LOGIN_NAME}@(?=(?:[A-Za-z\[]|\d+\.\d+\.\d+\.\d+))(?![\w.\\-]+\.(?:service|socket|target"
            r"|slice|scope|timer|mount)\b)"
        ),
    )
)
"""Places where a word is a login. Each pattern takes a bounded number of steps at any place, however long the line."""
_USER_TABLE_HEADER = re.compile(
    r"^(?=[^\n]*\b(?:PID|TTY|COMMAND|CMD|JOBID|STATE|ST|GROUP|FROM)\b)[A-Z%/(), \t]*\b(?:USER|OWNER)\b[^\n]*$",
    re.MULTILINE,
)
_GROUP_FILE_LINE = re.compile(r"^[\w.-]+:[x*!]?:\d+:(?P<members>[\w.,-]+)$", re.MULTILINE)
_LOGIN_FIELDS = frozenset("user username user_name login logname owner account acct USER LOGNAME USERNAME".split())


class PeopleNames:
    """Learns the names of people from all texts, then finds them. All names of one person get the same number.

    A name that is also a technical word (`gpu`, `data`, `driver`) is found only where a login stands: in a home's path,
    after `user=`, in an owner's column, before `@`. Any other name is found wherever it stands as a word.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._words: dict[str, str] = {}  # names that are technical words, and are found as logins only
        self._homes: dict[str, set[str]] = {}  # by such a name, the folders that its homes are in
        self._mails: dict[str, str] = {}
        self._looked_for = KnownNames()
        self._found = 0

    def add(self, *names: str, home: str = "") -> None:
        """Learn one person, by login name and full name; the last part of the home folder may be another name of the
        same person. A name that is known already links all of them to that person."""
        parts = [part for part in re.split(r"[\\/]+", home) if part]
        if len(parts) > 1 and parts[0].lower() not in ("var", "usr", "etc", "opt", "run", "nonexistent"):
            names = (*names, parts[-1])
            self._homes.setdefault(parts[-1].lower(), set()).add(home.rstrip("\\/")[: -len(parts[-1])])
        wanted = [name.lower() for name in names if self._is_somebody(name)]
        known = next((found for name in wanted if (found := self._other(name))), None)
        for name in wanted:
            if self._other(name) is None:
                known = known or self._new()
                self._know(name, known)
            known = known or self._other(name)

    def _other(self, name: str) -> str | None:
        """The pseudonym of a known name."""
        return self._names.get(name) or self._words.get(name)

    def _know(self, name: str, other: str) -> None:
        """Remember the pseudonym of a name."""
        (self._words if is_technical_word(name) else self._names)[name] = other
        self._looked_for.add(name)

    def learn(self, text: str) -> None:
        """Learn the names in the home folders that a text mentions."""
        for match in _FULL_NAME_HOME_FOLDER.finditer(text):
            self.add(match["first"], match["name"])
        for match in _HOME_FOLDER.finditer(text):
            self.add(match["name"].rstrip("."))

    def find(self, text: str) -> Iterator[tuple[TextSpan, str]]:
        """Every place of a name, with its replacement."""
        if "@" in text:
            for match in _MAIL_ADDRESS.finditer(text):
                if match["top"].lower() not in _NON_MAIL_TOP_DOMAINS and not match["host"].lower().endswith(
                    _NON_MAIL_HOSTS
                ):
                    mail = self._mails.setdefault(match[0].lower(), f"mail{len(self._mails) + 1}@example.org")
                    yield match.span(), mail
        of_trade = False
        for (start, end), name in self._looked_for.find(text):
            if name in self._words:
                of_trade = True
                homes = self._homes.get(name, ())
                if any(text.endswith(home, 0, start) for home in homes) and not _word_goes_on(text, end):
                    yield (start, end), self._words[name]
            elif name in self._names:
                joins = "_" if len(name) < _MIN_UNDERSCORED_NAME_CHARACTERS else ""
                if not is_inside_word(text, start, joins) and not is_inside_word(text, end, joins):
                    yield (start, end), self._names[name]
        if of_trade:
            yield from self._logins(text)
        if "/" in text or "\\" in text:
            for match in _HOME_FOLDER.finditer(text):
                name = match["name"].rstrip(".").lower()
                if len(name) == 1:
                    if name not in self._words:
                        self._words[name] = self._new()
                    yield (match.start("name"), match.start("name") + 1), self._words[name]

    def _logins(self, text: str) -> Iterator[tuple[TextSpan, str]]:
        """The places where a known name that is also a technical word stands as a login, each with its pseudonym."""
        for pattern in _LOGIN_PATTERNS:
            for match in pattern.finditer(text):
                name = match["name"].rstrip(".-")
                if other := self._words.get(name.lower()):
                    yield (match.start("name"), match.start("name") + len(name)), other
        for header in _USER_TABLE_HEADER.finditer(text):
            yield from self._column(text, header)
        for group in _GROUP_FILE_LINE.finditer(text):
            for word in re.finditer(r"[^,]+", group["members"]):
                if other := self._words.get(word[0].lower()):
                    yield (group.start("members") + word.start(), group.start("members") + word.end()), other

    def _column(self, text: str, header: re.Match[str]) -> Iterator[tuple[TextSpan, str]]:
        """The known names in the column below a heading USER or OWNER, down to the next empty line."""
        headings = header[0].split()
        column = next(number for number, word in enumerate(headings) if word in ("USER", "OWNER"))
        at = header.end() + 1
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            found = list(islice(re.finditer(r"\S+", text[at:end]), column + 1))
            if not found:
                return
            if len(found) > column and (other := self._words.get(found[column][0].lower())):
                yield (at + found[column].start(), at + found[column].end()), other
            at = end + 1

    def login(self, field: str, value: str) -> str | None:
        """The pseudonym of a value that is a login by the name of its field, as in JSON; None for any other value."""
        return self._words.get(value.lower()) if field in _LOGIN_FIELDS else None

    @property
    def names(self) -> list[str]:
        return [*self._names, *self._words]

    @property
    def mails(self) -> int:
        return len(self._mails)

    def _is_somebody(self, name: str) -> bool:
        """Whether a name may be a person's: no account of a system, no number, no single letter."""
        return len(name) > 1 and name.lower() not in SYSTEM_ACCOUNTS and not name.isdigit() and not name.startswith("_")

    def _new(self) -> str:
        self._found += 1
        return f"user{self._found}"


def _word_goes_on(text: str, end: int) -> bool:
    """Whether a word goes on at this place."""
    return text[end : end + 1].isalnum() or text[end : end + 1] in ("_", "-")


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
_IPV4 = re.compile(rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\w|\.[0-9])")
_IPV4_IN_WORD = re.compile(rf"(?<![0-9])(?<![0-9]\.)(?:{_OCTET}\.){{3}}{_OCTET}(?:\.(?P<port>[0-9]{{1,5}}))?(?![0-9])")
"""An address inside a word, as in `backup_10.0.0.1.log`, or with its port as tcpdump writes both: `10.0.0.1.29500`."""
_IPV4_AS_HEX = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?![0-9A-Fa-f])")
_MIN_HEX_ADDRESS = 0x10000  # a smaller number in eight hexadecimal digits is taken for a count, not for an address
_NETMASK = re.compile(r"/([0-9]{1,2})(?![0-9.])")
_MIN_NETMASK_BITS = 16  # bits behind a shorter netmask do not stay: they are most of an address
_IPV4_RANGE = re.compile(r"(?<![\w.])((?:[0-9]{1,3}\.){3})(?=\[[0-9,\- ]+\])")
_IPV4_DASHED = re.compile(r"(?<![A-Za-z0-9-])ip-((?:[0-9]{1,3}-){3}[0-9]{1,3})(?![0-9-])")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,8}(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9A-Fa-f]{0,4})(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4,18}[0-9A-Fa-f]{2}(?![\w:-])")
_SHORT_MAC = re.compile(
    r"(?<![\w:-])(?=[0-9A-Fa-f:]{0,14}[0-9A-Fa-f]{2})(?:[0-9A-Fa-f]{1,2}:){5}[0-9A-Fa-f]{1,2}(?![\w:-])"
)
"""A MAC without leading zeros in its octets, as bridges are written."""
_GUID = re.compile(r"(?:GUID|guid):?\s+((?:0x)?[0-9A-Fa-f]{16}|[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?![\w:])")
_NODESET = re.compile(r"[A-Za-z0-9_.-]{0,64}(?:\[[0-9a-z,\- ]{1,64}\](?:[A-Za-z0-9_.-]{0,64}[A-Za-z0-9_-])?){1,4}")
_LETTER_RANGE = re.compile(r"(?<=[-_.])\[([a-z](?:-[a-z])?(?:,[a-z](?:-[a-z])?)*)\]\Z")
_VERSION_BEFORE = re.compile(
    r"(?:==|version[\s:=\"']*|[-_]cu[0-9]+[\s=]*|\bv|cudnn[\s:=]*|firmware[\s:=\w-]*|fw_ver[\s:=]*)\Z", re.IGNORECASE
)

# The class of an address is useful and no secret: (network, how many of an address's first bits stay).
_KEPT_IPV4_NETWORKS = [
    (ipaddress.ip_network("10.0.0.0/8"), 8),
    (ipaddress.ip_network("172.16.0.0/12"), 12),
    (ipaddress.ip_network("192.168.0.0/16"), 16),
    (ipaddress.ip_network("100.64.0.0/10"), 10),
    (ipaddress.ip_network("169.254.0.0/16"), 16),
]
_COMMON_HOST_NAMES = frozenset(
    "localhost localdomain local master node nodes host hosts all any default gateway router broadcast".split()
)


class Machines:
    """Learns the names and addresses of machines from all texts, then finds them. All must be learned first, since a
    pseudonym that keeps the structure depends on all addresses."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._common: set[str] = set()  # names of hosts that stay: they are common words and identify nobody
        self._domains: dict[str, str] = {}
        self._looked_for = KnownNames()
        self._addresses: set[str] = set()  # every IPv4 address seen
        self._bits: set[tuple[int, int]] = set()  # (length, prefix) for every prefix of every IPv4 address seen
        self._networks: set[tuple[int, int]] = set()  # (length, prefix) of networks with a known netmask
        self._public: dict[int, int] = {}
        self._subnets6: dict[int, int] = {}
        self._ids6: dict[int, int] = {}
        self._macs: dict[str, int] = {}

    # Learning.

    def add_name(self, name: str) -> None:
        """Learn a host's name, with or without a domain. Addresses, localhost and common words get no pseudonym."""
        name = name.lower().strip(".")
        labels = name.split(".")
        if not name or is_loopback(name) or name.startswith(("ip6-", "ff02")) or is_ip(name):
            return
        if labels[0] in _COMMON_HOST_NAMES or is_common_host_name(labels[0]):
            self._common.add(labels[0])
        elif len(labels[0]) > 1:
            self._names.setdefault(labels[0], f"host{len(self._names) + len(self._common) + 1}")
            self._looked_for.add(labels[0])
        if len(labels) > 1:
            self.add_domain(".".join(labels[1:]))

    def add_domain(self, domain: str) -> None:
        """Learn a domain, unless it is a common word or too short to identify anybody."""
        domain = domain.lower().strip(".")
        distinct = "." in domain or len(domain) > 3
        if distinct and domain not in _COMMON_HOST_NAMES and not is_common_host_name(domain):
            self._domains.setdefault(domain, f"domain{len(self._domains) + 1}.example")
            self._looked_for.add(domain)

    def learn(self, text: str) -> None:
        """Learn the addresses, ranges of hosts and search domains in a text."""
        for match in _IPV4.finditer(text):
            if not _is_version_number(text, match.start()):
                value, mask = self._learn(match[0]), _NETMASK.match(text, match.end())
                if value is not None and mask and _MIN_NETMASK_BITS <= int(mask[1]) < 24:
                    self._networks.add((int(mask[1]), value >> (32 - int(mask[1]))))
        for match in _IPV4_IN_WORD.finditer(text):
            if 255 < int(match["port"] or 0) < 65536 and not _is_version_number(text, match.start()):
                self._learn(match[0].rpartition(".")[0])
        for match in _IPV4_DASHED.finditer(text):
            self._learn(match[1].replace("-", "."))
        for match in _IPV4_RANGE.finditer(text):
            self._learn(match[1] + "0")
        for match in _NODESET.finditer(text) if "[" in text else ():
            self._of_range(match[0])
        for match in re.finditer(r"^(?:search|domain)\s+(.+)$", text, re.MULTILINE):
            for domain in match[1].split():
                if re.fullmatch(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+\.?", domain):
                    self.add_domain(domain)

    def _learn(self, address: str) -> int | None:
        """Learn an IPv4 address; returns its number, or None for what only looks like an address (`10.01.1.1`)."""
        try:
            value = int(ipaddress.IPv4Address(address))
        except ValueError:
            return None
        self._addresses.add(address)
        for length in range(1, 25):
            self._bits.add((length, value >> (32 - length)))
        return value

    def _is_neighbour(self, address: str) -> bool:
        """Whether an address of the same /24 was seen."""
        with contextlib.suppress(ValueError):
            return (24, int(ipaddress.IPv4Address(address)) >> 8) in self._bits
        return False

    # Finding.

    def find(self, text: str) -> Iterator[tuple[TextSpan, str]]:
        """Every place of a name or an address, with its replacement."""
        if "[" in text:
            for match in _IPV4_RANGE.finditer(text):
                yield match.span(1), self.v4(match[1] + "0")[:-1]
            for match in _NODESET.finditer(text):
                if (other := self._of_range(match[0])) is not None:
                    yield match.span(), other
        for match in _IPV4.finditer(text):
            if match[0] in self._addresses or not _is_version_number(text, match.start()):
                yield match.span(), self.v4(match[0])
        for match in _IPV4_IN_WORD.finditer(text):
            address = match[0] if match["port"] is None else match[0].rpartition(".")[0]
            if address in self._addresses or (match["port"] and self._is_neighbour(address)):
                yield (match.start(), match.start() + len(address)), self.v4(address)
        for match in _IPV4_AS_HEX.finditer(text) if self._addresses else ():
            if (other := self._v4_as_hex(match[0])) is not None:
                yield match.span(), other
        for match in _IPV4_DASHED.finditer(text):
            yield match.span(1), self.v4(match[1].replace("-", ".")).replace(".", "-")
        if ":" in text or "-" in text:
            for match in _MAC.finditer(text):
                yield match.span(), self._mac(match[0], match[1])
            for match in _SHORT_MAC.finditer(text):
                yield match.span(), self._mac(":".join(octet.zfill(2) for octet in match[0].split(":")), ":")
            for match in _GUID.finditer(text):
                yield match.span(1), f"0x{self._number(match[1]):016x}"
        if ":" in text:
            for match in _IPV6.finditer(text):
                if (other := self.v6(match[0])) is not None:
                    yield match.span(), other
        for (start, end), name in self._looked_for.find(text):
            other = self._domains.get(name) or self._names.get(name)
            if other and not is_inside_word(text, start) and not is_inside_word(text, end):
                yield (start, end), other

    def v4(self, address: str) -> str:
        """The pseudonym of an IPv4 address. A text that is no address stays, and so does an address that means no
        single machine (loopback, multicast, broadcast)."""
        try:
            ip = ipaddress.IPv4Address(address)
        except ValueError:
            return address
        value = int(ip)
        if ip.is_loopback or ip.is_multicast or value >> 24 in (0, 255) or value >> 28 == 15:
            return address
        kept = next((kept for network, kept in _KEPT_IPV4_NETWORKS if ip in network), None)
        if kept is None:
            # Each public /24 becomes a /24 of the ranges for documentation and benchmarks: no others are free.
            number = self._public.setdefault(value >> 8, len(self._public))
            blocks = [0xCB0071, 0xC63364, 0xC00002]
            block = blocks[number] if number < 3 else 0xC61200 + (number - 3) % 512
            return str(ipaddress.IPv4Address(block << 8 | value & 255))
        mapped = value >> (32 - kept)
        for length in range(kept + 1, 25):
            prefix = value >> (32 - length)
            of_host = any((mask, value >> (32 - mask)) in self._networks for mask in range(_MIN_NETMASK_BITS, length))
            both = of_host or (length, prefix ^ 1) in self._bits
            mapped = mapped << 1 | (prefix & 1 if both else 0)
        return str(ipaddress.IPv4Address(mapped << 8 | value & 255))

    def _v4_as_hex(self, digits: str) -> str | None:
        """The pseudonym of an IPv4 address in hexadecimal digits, as chrony and /proc/net write it; None for a number
        that is in no /24 of a known address."""
        for order in (">", "<"):
            (value,) = struct.unpack(f"{order}I", bytes.fromhex(digits))
            if (24, value >> 8) in self._bits and int(digits, 16) >= _MIN_HEX_ADDRESS:
                mapped = int(ipaddress.IPv4Address(self.v4(str(ipaddress.IPv4Address(value)))))
                other = struct.pack(f"{order}I", mapped).hex()
                return other.upper() if digits.upper() == digits else other
        return None

    def v6(self, address: str) -> str | None:
        """The pseudonym of an IPv6 address, whose first 64 bits are its subnet; None for a text that is no address."""
        try:
            ip = ipaddress.IPv6Address(address)
        except ValueError:
            return None
        if ip.ipv4_mapped is not None:
            return f"::ffff:{self.v4(str(ip.ipv4_mapped))}"
        value = int(ip)
        if value < 1 << 16 or ip.is_loopback:
            return address
        if ip.is_multicast:
            solicited = value >> 24 == 0xFF0200000000000000000001FF
            return "ff02::1:ff00:0" if solicited else address
        subnet, machine = value >> 64, value & (1 << 64) - 1
        if machine >= 1 << 16:  # made from a MAC or at random; a small one was typed by a person and identifies nobody
            machine = (1 << 16) + self._ids6.setdefault(machine, len(self._ids6) + 1)
        if ip.is_link_local:
            subnet = 0xFE80 << 48
        else:
            first = 0xFD00 << 48 if ip.is_private else 0x20010DB8 << 32
            subnet = first | self._subnets6.setdefault(subnet, len(self._subnets6) + 1)
        return str(ipaddress.IPv6Address(subnet << 64 | machine))

    def _mac(self, text: str, joint: str) -> str:
        """The pseudonym of a MAC or InfiniBand hardware address, with the same separators; all 0 or all f stays."""
        digits = re.sub(r"[:-]", "", text)
        if not digits.strip("0") or not digits.lower().strip("f"):
            return text
        octets = f"{self._number(digits):0{len(digits)}x}"
        octets = "02" + octets[2:]  # locally administered
        return joint.join(octets[at : at + 2] for at in range(0, len(octets), 2))

    def _number(self, of: str) -> int:
        """The number of a MAC or GUID, by which its pseudonym is made."""
        return self._macs.setdefault(of.lower(), len(self._macs) + 1)

    def _of_range(self, text: str) -> str | None:
        """The pseudonym of a range such as `gn[01-04]`: `host[1-4]` if the numbers follow one another, else the names
        with colons. All names of a range are hosts if one is; None if none is known."""
        try:
            names = [name.split(".")[0] for name in _expanded_range(text.lower())]
        except ValueError:
            return None
        if len(names) > 10_000 or self._names.keys().isdisjoint(names):
            return None
        for name in names:
            self.add_name(name)
        if not self._names.keys() >= set(names):
            return None
        numbers = [int(self._names[name].removeprefix("host")) for name in names]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 1:
            return f"host[{numbers[0]}-{numbers[-1]}]"
        return ":".join(f"host{number}" for number in numbers)

    @property
    def names(self) -> list[str]:
        return [*self._names, *self._domains]


def _expanded_range(text: str) -> list[str]:
    """The names in a range such as `gn[01-04]` or `node-[a-c]`, as findings and events write it. Raises ValueError."""
    letters = _LETTER_RANGE.search(text)
    if letters is None:
        return expand(text)
    spans = [(part[0], part[-1]) for part in letters[1].split(",")]
    ends = [chr(code) for first, last in spans for code in range(ord(first), ord(last) + 1)]
    return [name + end for name in expand(text[: letters.start()]) for end in ends]


def _is_version_number(text: str, at: int) -> bool:
    """Whether four numbers with dots are a version: `nvidia-cublas-cu12==12.1.3.1`."""
    return _VERSION_BEFORE.search(text, max(0, at - 24), at) is not None
