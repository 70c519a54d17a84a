"""User names, home folders and e-mail addresses, and the names they get: `user1`, `/home/user1`, `mail1@example.org`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.engine.collect.secrets import Place

GENERIC = frozenset(
    re.findall(
        r"[^\s,]+",
        """root ubuntu debian centos fedora rocky almalinux alma rhel suse arch alpine admin administrator user users ec2-user
    azureuser opc vagrant cloud-user core nobody daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc
    gnats systemd-network systemd-resolve systemd-timesync systemd-journal messagebus syslog sshd postfix chrony ntp polkitd
    rpc rpcuser statd nfsnobody dbus tss uuidd tcpdump landscape lxd docker containerd nvidia-persistenced munge slurm conda
    runner builder jenkins linuxbrew circleci travis vsts default guest public shared test nvidia node python ssh local""",
    )
)
"""Accounts that come with a system, and words that are nobody: in their place would stand a riddle."""
ORDINARY = frozenset(
    re.findall(
        r"[^\s,]+",
        """data datasets models model work workspace workspaces projects project home scratch tmp temp common team lib src code
    share software apps app opt build train training jobs job logs log output outputs checkpoints cache env envs all""",
    )
)
"""Folders beside the homes of people: replaced in such a path, and nowhere else."""

_HOME = re.compile(r"(?:/(?:home|Users)/|[A-Za-z]:[\\/]+Users[\\/]+)(?P<name>[A-Za-z0-9_][\w.@+-]*)")
_MAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,64}@(?P<host>(?:[A-Za-z0-9-]{1,63}\.){1,10}(?P<top>[A-Za-z]{2,}))(?![\w-])"
)
_NO_MAIL_TOPS = frozenset(
    re.findall(
        r"[^\s,]+", "service socket target slice scope timer mount device path swap conf py json yml yaml so log"
    )
)
_NO_MAIL_HOSTS = ("openssh.com", "libssh.org", "lysator.liu.se", "example.org", "example.com")
_LONG_ENOUGH = 5  # for a name to be one inside `name_of_a_run`: `max` is a word of `rmem_max` first


class People:
    """Learns names, then finds them. The same name always gets the same number."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._homes: dict[str, str] = {}
        self._mails: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._found = 0

    def add(self, *names: str, home: str = "") -> None:
        """One person, by login name and full name; the last part of the home folder may be yet another name."""
        parts = [part for part in re.split(r"[\\/]+", home) if part]
        if len(parts) > 1 and parts[0].lower() not in ("var", "usr", "etc", "opt", "run", "nonexistent"):
            names = (*names, parts[-1])
        wanted = [name for name in names if self._is_somebody(name)]
        known = next((self._names[name.lower()] for name in wanted if name.lower() in self._names), None)
        for name in wanted:
            self._names.setdefault(name.lower(), known or self._new())
            known = known or self._names[name.lower()]
            self._pattern = None

    def learn(self, text: str) -> None:
        """Names that a text tells by its paths."""
        for match in _HOME.finditer(text):
            name = match["name"].rstrip(".")
            if name.lower() in ORDINARY:
                self._homes.setdefault(name.lower(), self._new())
            else:
                self.add(name)

    def find(self, text: str) -> Iterator[tuple[Place, str]]:
        """Every place of a name, and what takes it."""
        if "@" in text:
            for match in _MAIL.finditer(text):
                if match["top"].lower() not in _NO_MAIL_TOPS and not match["host"].lower().endswith(_NO_MAIL_HOSTS):
                    mail = self._mails.setdefault(match[0].lower(), f"mail{len(self._mails) + 1}@example.org")
                    yield match.span(), mail
        if self._names:
            if self._pattern is None:
                self._pattern = _words(self._names)
            for match in self._pattern.finditer(text):
                yield match.span(), self._names[match[0].lower()]
        if "/" in text or "\\" in text:
            for match in _HOME.finditer(text):
                name = match["name"].rstrip(".").lower()
                if name in self._homes or len(name) == 1:
                    other = self._homes.get(name) or self._homes.setdefault(name, self._new())
                    start = match.start("name")
                    yield (start, start + len(name)), other

    @property
    def names(self) -> list[str]:
        return [*self._names, *self._homes]

    @property
    def mails(self) -> int:
        return len(self._mails)

    def _is_somebody(self, name: str) -> bool:
        return len(name) > 1 and name.lower() not in GENERIC and not name.isdigit() and not name.startswith("_")

    def _new(self) -> str:
        self._found += 1
        return f"user{self._found}"


def _words(names: dict[str, str]) -> re.Pattern[str]:
    """Whole words, the longest first; what joins words in a file's name parts them, where the name is long enough."""
    long = sorted((re.escape(name) for name in names if len(name) >= _LONG_ENOUGH), key=len, reverse=True)
    short = sorted((re.escape(name) for name in names if len(name) < _LONG_ENOUGH), key=len, reverse=True)
    parts = []
    if long:
        parts.append(rf"(?<![A-Za-z0-9])(?:{'|'.join(long)})(?![A-Za-z0-9])")
    if short:
        parts.append(rf"(?<![A-Za-z0-9_])(?:{'|'.join(short)})(?![A-Za-z0-9_])")
    return re.compile("|".join(parts), re.IGNORECASE)
