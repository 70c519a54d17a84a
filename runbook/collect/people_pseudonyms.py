"""Replaces user names, home folders and e-mail addresses by pseudonyms: `user1`, `/home/user1`, `mail1@example.org`.

Technical words are those of our own pages, programs and schemas: such a name counts as a word unless it stands where a
login does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING

from runbook.collect.known_names import KnownNames, Place, inside_word

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# --- technical words ---------------------------------------------------------------------------------------------

_WORDS = (re.compile(r"[a-z][a-z0-9]+"), re.compile(r"[a-z]{2,}"))
_ENDINGS = (".md", ".py", ".j2", ".txt")
ORDINARY = frozenset(
    """data dataset datasets model models home homes scratch tmp temp common team lib src app apps opt build builds
    trainer checkpoint checkpoints project projects share public guest work workspace software libs torch node nodes
    test tests admin user users gpu gpus local shared default logs jobs batch web mail ftp store media video audio
    photo game games""".split()
)

_DEVICE = re.compile(r"(?:gpu|cpu|cuda|rank|mlx|ib|eth|eno|ens|bond|nvme|tty|pts)[0-9]+")


def is_word(name: str) -> bool:
    """Whether a name in small letters is a common technical word, also with a number behind it, as in `gpu7` or
    `worker3`."""
    return name.rstrip("0123456789") in words() or name in words()


def is_common(name: str) -> bool:
    """The same of a host's name, where a number tells hosts apart, but for those of devices: `gn7` is nothing else,
    `gpu7` is."""
    return name in words() if name.isalpha() else _DEVICE.fullmatch(name) is not None


@cache
def words() -> frozenset[str]:
    """In small letters. About fifty milliseconds, once."""
    found = set(ORDINARY)
    for text in _texts(resources.files("runbook")):
        found.update(*(pattern.findall(text.lower()) for pattern in _WORDS))
    return frozenset(found)


def _texts(folder: Traversable) -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir() and one.name == "collect":
            continue  # its examples are of people
        if one.is_dir():
            yield from _texts(one)
        elif one.name.endswith(_ENDINGS):
            yield one.read_text(encoding="utf-8")


# --- people ---------------------------------------------------------------------------------------------------------

GENERIC = frozenset(
    """root ubuntu debian centos fedora rocky almalinux alma rhel suse arch alpine ec2-user azureuser opc vagrant
    cloud-user nobody daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats
    systemd-network systemd-resolve systemd-timesync systemd-journal messagebus syslog sshd postfix chrony ntp
    polkitd rpc rpcuser statd nfsnobody dbus tss uuidd tcpdump landscape lxd docker containerd nvidia-persistenced
    munge slurm conda runner builder jenkins linuxbrew circleci travis vsts""".split()
)
"""Accounts that come with a system: they are not replaced, since a pseudonym would hide useful facts."""

_HOME = re.compile(r"(?:/(?:home|Users)/|[A-Za-z]:[\\/]+Users[\\/]+)(?P<name>\w[\w.@+-]*)")
_FULL_NAME_HOME = re.compile(r"[A-Za-z]:[\\/]+Users[\\/]+(?P<name>(?P<first>\w[\w.@+-]*)(?: [\w.@+-]+){1,3})(?=[\\/])")
"""Windows calls a home after the whole name: `C:\\Users\\Jane Doe\\`."""
_MAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,64}@(?P<host>(?:[A-Za-z0-9-]{1,63}\.){1,10}(?P<top>[A-Za-z]{2,}))(?![\w-])"
)
_NO_MAIL_TOPS = frozenset(
    "service socket target slice scope timer mount device path swap conf py json yml yaml so log".split()
)
_NO_MAIL_HOSTS = ("openssh.com", "libssh.org", "lysator.liu.se", "example.org", "example.com")
_LONG_ENOUGH = 5  # for a name to be one inside `name_of_a_run`: `max` is a word of `rmem_max` first

_NAME = r"(?P<name>[A-Za-z0-9_][\w.-]{0,63})"
_LOGINS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # Fields: `user=gpu`, `"username": "gpu"`, `Owner: gpu`, `LOGNAME=gpu`, `user:gpu:rwx`, and options.
        (
            r"(?i:user|login|owner|logname|account|acct)(?i:_?name|_?id"
            rf"|s)?[\"']{{0,2}}[ \t]{{0,2}}[=:][ \t]{{0,2}}[\"'(]{{0,2}}{_NAME}"
        ),
        (
            r"(?:--user|--login|--owner|\bsudo(?: -[A-Za-z]+)? -u|\bssh -l|\bchown(?: -R)?"
            rf"|\bsu(?: -l?| --login)?)[ =]+{_NAME}"
        ),
        # Sentences of sshd, sudo, PAM and cron.
        rf"(?i:for|by|of|as|sorry,|invalid|unknown) user [`'\"]?{_NAME}",
        rf"(?i:logged in as|login as|owned by)(?: user)?:? [`'\"]?{_NAME}",
        rf"\b(?:Accepted|Failed) \S+ for {_NAME} from\b",
        rf"\bsudo(?:\[\d+\])?: +{_NAME} : ",
        rf"(?<![\w.-]){_NAME} is not (?:in the sudoers|allowed to)",
        rf"[=,]\d+\({_NAME}\)",  # id
        rf"\b{_NAME}\(uid=\d",
        rf"\({_NAME}\) CMD ",
        # Columns: ls -l (owner, then group), ps, who, passwd, group, and our own list of processes.
        rf"[bcdlps-][rwxsStT-]{{9}}[.+@]? +\d+ +{_NAME}[ \t]",
        rf"[bcdlps-][rwxsStT-]{{9}}[.+@]? +\d+ +[\w.-]+ +{_NAME}[ \t]",
        rf"^{_NAME} +\d+ +\d+(?:\.\d+)? +\d+(?:\.\d+)? +\S+ +\S",
        rf"^{_NAME} +(?:pts/|tty|:\d|console\b)",
        rf"^{_NAME}:[x*!]?:\d*:",
        rf"^[ \t]*\d+ {_NAME} (?:[A-Zt] \[| *(?:rt|-?\d+) +-?\d+ )",
        # Places: `~gpu`, folders that are called by their owners, and `gpu@node-a`.
        rf"(?<![\w~./-])~{_NAME}(?=[/\s\"':,;)]|$)",
        rf"[/\\](?:homes?|Users|users?|mail|crontabs|media)[/\\]+{_NAME}",
        (
            rf"(?<![\w.+@/-]){_NAME}@(?=(?:[A-Za-z\[]|\d+\.\d+\.\d+\.\d+))(?![\w.\\-]+\.(?:service|socket|target"
            r"|slice|scope|timer|mount)\b)"
        ),
    )
)
"""Places where a word is a login. Each is a few steps at any place, however long the line is."""
_HEADER = re.compile(
    r"^(?=[^\n]*\b(?:PID|TTY|COMMAND|CMD|JOBID|STATE|ST|GROUP|FROM)\b)[A-Z%/(), \t]*\b(?:USER|OWNER)\b[^\n]*$",
    re.MULTILINE,
)
_GROUP = re.compile(r"^[\w.-]+:[x*!]?:\d+:(?P<members>[\w.,-]+)$", re.MULTILINE)
_FIELDS = frozenset("user username user_name login logname owner account acct USER LOGNAME USERNAME".split())


class PeopleNames:
    """Learns names, then finds them. The same name always gets the same number.

    A name that is also a technical word (`gpu`, `data`, `driver`) is found only where a login stands: in a home's path,
    a `user=`, an owner's column, before `@`. Any other is found wherever it stands as a word.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._words: dict[str, str] = {}  # those of them that are found as logins only
        self._homes: dict[str, set[str]] = {}  # of those, the folders that their homes are in
        self._mails: dict[str, str] = {}
        self._looked_for = KnownNames()
        self._found = 0

    def add(self, *names: str, home: str = "") -> None:
        """One person, by login name and full name; the last part of the home folder may be yet another name."""
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
        return self._names.get(name) or self._words.get(name)

    def _know(self, name: str, other: str) -> None:
        (self._words if is_word(name) else self._names)[name] = other
        self._looked_for.add(name)

    def learn(self, text: str) -> None:
        """Names that a text shows in its paths."""
        for match in _FULL_NAME_HOME.finditer(text):
            self.add(match["first"], match["name"])
        for match in _HOME.finditer(text):
            self.add(match["name"].rstrip("."))

    def find(self, text: str) -> Iterator[tuple[Place, str]]:
        """Every place of a name, with its replacement."""
        if "@" in text:
            for match in _MAIL.finditer(text):
                if match["top"].lower() not in _NO_MAIL_TOPS and not match["host"].lower().endswith(_NO_MAIL_HOSTS):
                    mail = self._mails.setdefault(match[0].lower(), f"mail{len(self._mails) + 1}@example.org")
                    yield match.span(), mail
        of_trade = False
        for (start, end), name in self._looked_for.find(text):
            if name in self._words:
                of_trade = True
                homes = self._homes.get(name, ())
                if any(text.endswith(home, 0, start) for home in homes) and not _goes_on(text, end):
                    yield (start, end), self._words[name]
            elif name in self._names:
                joins = "_" if len(name) < _LONG_ENOUGH else ""
                if not inside_word(text, start, joins) and not inside_word(text, end, joins):
                    yield (start, end), self._names[name]
        if of_trade:
            yield from self._logins(text)
        if "/" in text or "\\" in text:
            for match in _HOME.finditer(text):
                name = match["name"].rstrip(".").lower()
                if len(name) == 1:
                    if name not in self._words:
                        self._words[name] = self._new()
                    yield (match.start("name"), match.start("name") + 1), self._words[name]

    def _logins(self, text: str) -> Iterator[tuple[Place, str]]:
        for pattern in _LOGINS:
            for match in pattern.finditer(text):
                name = match["name"].rstrip(".-")
                if other := self._words.get(name.lower()):
                    yield (match.start("name"), match.start("name") + len(name)), other
        for header in _HEADER.finditer(text):
            yield from self._column(text, header)
        for group in _GROUP.finditer(text):
            for word in re.finditer(r"[^,]+", group["members"]):
                if other := self._words.get(word[0].lower()):
                    yield (group.start("members") + word.start(), group.start("members") + word.end()), other

    def _column(self, text: str, header: re.Match[str]) -> Iterator[tuple[Place, str]]:
        """Below a heading USER, to the next empty line: the word that stands there in each line."""
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
        """The replacement of a value that is a login by the name of its field, as in JSON; None if it is not."""
        return self._words.get(value.lower()) if field in _FIELDS else None

    @property
    def names(self) -> list[str]:
        return [*self._names, *self._words]

    @property
    def mails(self) -> int:
        return len(self._mails)

    def _is_somebody(self, name: str) -> bool:
        return len(name) > 1 and name.lower() not in GENERIC and not name.isdigit() and not name.startswith("_")

    def _new(self) -> str:
        self._found += 1
        return f"user{self._found}"


def _goes_on(text: str, end: int) -> bool:
    return text[end : end + 1].isalnum() or text[end : end + 1] in ("_", "-")
