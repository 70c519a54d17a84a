"""Hosts as people type them: `gn01`, `ubuntu@10.0.0.1:2222`, `gn[01-04]`, a Host of ~/.ssh/config, `localhost`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.load.address import address_fault, is_ip, is_loopback, strip_brackets
from runbook.load.node_sets import expand
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Node, Ssh

_PORT = re.compile(r"\A(?P<host>.+):(?P<port>[0-9]{1,5})")
_USER = re.compile(r"[^-\s]\S*")
_TEMPORARY = "/tmp"  # the session's own folder: a survey leaves no ~/.runbook behind


@dataclass(frozen=True, slots=True)
class Login:
    """What the command line says for all hosts; a host's own `user@` and `:port` win."""

    user: str | None = None
    key: str | None = None
    port: int | None = None
    jump: str | None = None
    accept_new: bool = False


@dataclass(frozen=True, slots=True)
class SurveyHost:
    """One host to ask; `node` is how to log in, under the name as it was typed."""

    typed: str
    node: Node

    @property
    def is_here(self) -> bool:
        return self.node.connection == "local"


def parse_hosts(words: Iterable[str], login: Login) -> list[SurveyHost]:
    """Every host, ranges expanded. Raises FilesWrong with all that cannot be hosts, or are given twice."""
    hosts: dict[tuple[str, int | None], SurveyHost] = {}
    problems: list[Problem] = []
    for word in words:
        try:
            found = _hosts(word, login)
        except ValueError as error:
            help = error.args[1] if len(error.args) > 1 else None
            problems.append(Problem("arguments.host", f"{word}: {error.args[0]}", None, help))
            continue
        for host in found:
            if hosts.setdefault((host.typed.lower(), host.node.ssh.port), host) is not host:
                problems.append(Problem("arguments.host", f"{host.typed} is given twice", None, "name each host once"))
    if problems:
        raise FilesWrong(problems)
    return _named_apart(list(hosts.values()))


def _hosts(word: str, login: Login) -> list[SurveyHost]:
    user, at, rest = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise ValueError(f"`{user}` is no login name")
    port = login.port
    match = _PORT.fullmatch(rest)
    if match and not is_ip(rest):
        rest, port = match["host"], int(match["port"])
        if not 1 <= port <= 65535:
            raise ValueError(f"{port} is no port: ports run from 1 to 65535")
    ssh = Ssh(
        user=user or login.user,
        port=port,
        key=login.key,
        jump=login.jump,
        host_keys="accept-new" if login.accept_new else "strict",
    )
    found = []
    for name in expand(strip_brackets(rest)):
        fault = address_fault(name)
        if fault is not None:
            raise ValueError(*fault)
        here = is_loopback(name) and not is_ip(name) and not at and port is None
        connection = "local" if here else "ssh"
        label = name if not is_ip(name) else name.replace(":", "-").replace("%", "-").strip("-")
        found.append(
            SurveyHost(name, Node(name=label, address=name, connection=connection, ssh=ssh, workdir=_TEMPORARY))
        )
    return found


def _named_apart(hosts: list[SurveyHost]) -> list[SurveyHost]:
    """One address with two ports is two hosts, which need two names while they are asked."""
    seen: set[str] = set()
    apart = []
    for host in hosts:
        name = host.node.name
        if name in seen:
            name = f"{name}-{host.node.ssh.port or 22}"
        seen.add(name)
        apart.append(replace(host, node=replace(host.node, name=name)))
    return apart
