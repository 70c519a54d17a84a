"""Logs in to hosts as people type them, in parallel, and asks what they have; every wait has a deadline."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runbook.files.address import address_fault, is_ip, is_loopback, strip_brackets
from runbook.files.node_sets import expand
from runbook.importers.foreign_inventory import LOGIN_NAME
from runbook.importers.survey_facts import (
    InterfacesByName,
    address_number,
    common_address_bits,
    interface_addresses,
    is_dialable_address,
    usable_interfaces,
)
from runbook.model.errors import FilesWrong, Problem, Unreachable
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node, Ssh
from runbook.transport.node_answers import (
    HOST_FACTS_PROGRAM,
    IBSTAT_PROGRAM,
    PYTHONS_PROGRAM,
    ROUTE_PROGRAM,
    SURVEY_PROGRAM,
)
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import ProgramNotStarted

_HOST_AND_PORT = re.compile(r"\A(?P<host>.+):(?P<port>[0-9]{1,5})")
_COMMA_SEPARATED_ITEM = re.compile(r"(?:[^\[,]|\[[^\[\]]*\]?)+")  # a list in brackets stays whole
_SURVEY_WORKDIR = "/tmp"  # the session's own folder: a survey leaves no ~/.runbook behind


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to all hosts, as the command line says; a host's own `user@` and `:port` win."""

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
    """Every host, with lists and ranges expanded. Raises FilesWrong with all words that cannot be hosts, and with hosts
    that are given twice."""
    hosts: dict[tuple[str, int | None], SurveyHost] = {}
    problems: list[Problem] = []
    for word in (part for given in words for part in (_COMMA_SEPARATED_ITEM.findall(given) if given else [given])):
        try:
            found = _hosts_of_word(word, login)
        except ValueError as error:
            help = error.args[1] if len(error.args) > 1 else None
            message = error.args[0] if word in error.args[0] else f"{word}: {error.args[0]}"
            problems.append(Problem("arguments.host", message, None, help))
            continue
        for host in found:
            if hosts.setdefault((host.typed.lower(), host.node.ssh.port), host) is not host:
                problems.append(Problem("arguments.host", f"{host.typed} is given twice", None, "name each host once"))
    if problems:
        raise FilesWrong(problems)
    return _hosts_with_unique_names(list(hosts.values()))


def _hosts_of_word(word: str, login: Login) -> list[SurveyHost]:
    """The hosts of one word, its range expanded. Raises ValueError, with a help as its second argument if there is
    one."""
    user, at, rest = word.removeprefix("ssh://").rpartition("@")
    if at and not user:
        raise ValueError("no login name stands before `@`")
    if at and not LOGIN_NAME.fullmatch(user):
        raise ValueError(f"`{user}` is not a login name")
    port = login.port
    match = _HOST_AND_PORT.fullmatch(rest)
    if match and not is_ip(rest):
        rest, port = match["host"], int(match["port"])
        if not 1 <= port <= 65535:
            raise ValueError(f"{port} is not a port: ports run from 1 to 65535")
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
            SurveyHost(name, Node(name=label, address=name, connection=connection, ssh=ssh, workdir=_SURVEY_WORKDIR))
        )
    return found


def _hosts_with_unique_names(hosts: list[SurveyHost]) -> list[SurveyHost]:
    """The hosts with different names: one address with two ports is two hosts, which need two names while they are
    asked."""
    seen: set[str] = set()
    apart = []
    for host in hosts:
        name = host.node.name
        if name in seen:
            name = f"{name}-{host.node.ssh.usual_port}"
        seen.add(name)
        apart.append(replace(host, node=replace(host.node, name=name)))
    return apart


# Asking them.

ProgramAnswer = Mapping[str, Any]

FACTS_TIMEOUT_S = 30.0
PYTHONS_TIMEOUT_S = 20.0
ROUTES_TIMEOUT_S = 15.0
TIMEOUT_SLACK_S = 5.0
ROUTES = "routes"
MAX_ADDRESSES = 6
"""How many addresses of a host the others try to reach."""
MAX_PEERS = 8
"""How many others each host tries to reach: a hundred hosts need not all dial one another to know their interfaces."""


@dataclass(slots=True)
class HostAnswers:
    """The answers of one host; an answer that did not come is empty, and `unanswered` says why, by program."""

    host: SurveyHost
    hello: ProgramAnswer
    host_facts: ProgramAnswer = field(default_factory=dict)
    ibstat: ProgramAnswer = field(default_factory=dict)
    survey: ProgramAnswer = field(default_factory=dict)
    pythons: ProgramAnswer = field(default_factory=dict)
    routes: Sequence[ProgramAnswer] = ()
    unanswered: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.host.node.name

    @property
    def interfaces(self) -> InterfacesByName:
        return usable_interfaces(self.host_facts)


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """All answers, in the order in which the hosts were typed. `same`: for each further name of one machine, the
    first."""

    answers: Mapping[str, HostAnswers]
    failures: Mapping[str, Unreachable]
    same: Mapping[str, str]


def survey_hosts(hosts: Sequence[SurveyHost], *, forks: int = 64) -> SurveyResult:
    """Asks all hosts, `forks` of them at once. Ends within three minutes for every `forks` of them, however silent."""
    site = Site(f"survey-{secrets.token_hex(4)}", forks=forks)
    try:
        site.open(host.node for host in hosts)
        answered = {
            host.node.name: HostAnswers(host, site.sessions[host.node.name].hello)
            for host in hosts
            if host.node.name in site.sessions
        }
        same = _duplicate_machines(answered)
        for name in same:
            del answered[name]
        _ask_facts(site, answered)
        _ask_routes(site, answered)
        return SurveyResult(answered, dict(site.failures), same)
    finally:
        site.close()


def _duplicate_machines(answered: Mapping[str, HostAnswers]) -> dict[str, str]:
    """Further names of one machine, as only that machine and its network can know it: name -> the machine's first
    name."""
    first: dict[str, str] = {}
    same = {}
    for name, one in answered.items():
        owner = first.setdefault(str(one.hello["machine"]), name)
        if owner != name:
            same[name] = owner
    return same


def _ask_facts(site: Site, answered: Mapping[str, HostAnswers]) -> None:
    questions: Mapping[str, tuple[ProgramAnswer, float]] = {
        HOST_FACTS_PROGRAM: ({}, FACTS_TIMEOUT_S),
        SURVEY_PROGRAM: ({}, FACTS_TIMEOUT_S),
        IBSTAT_PROGRAM: ({}, FACTS_TIMEOUT_S),
        PYTHONS_PROGRAM: ({"seconds": PYTHONS_TIMEOUT_S - 4.0}, PYTHONS_TIMEOUT_S),
    }

    def one(program: str) -> Callable[[Node], ProgramAnswer]:
        arguments, timeout_s = questions[program]
        return lambda node: site.sessions[node.name].call(program, dict(arguments), timeout_s=timeout_s)

    nodes = [each.host.node for each in answered.values()]
    for program in questions:
        _record_answers(
            answered,
            program,
            site.each(nodes, one(program), timeout_s=_timeout_for_all(site, nodes, questions[program][1])),
        )


def _timeout_for_all(site: Site, nodes: Sequence[Node], timeout_s: float) -> float:
    """Seconds that all nodes may take if each may take `timeout_s`: they are asked in waves of `forks`."""
    return (timeout_s + TIMEOUT_SLACK_S) * -(-len(nodes) // site.forks)


def _ask_routes(site: Site, answered: Mapping[str, HostAnswers]) -> None:
    """Asks each host to look at its way to some others: to the next ones in the order given, and to the first."""
    names = list(answered)
    listed = candidate_addresses(answered)

    def look(node: Node) -> ProgramAnswer:
        place = names.index(node.name)
        around = [names[(place + step) % len(names)] for step in range(1, min(MAX_PEERS, len(names)))]
        peers = dict.fromkeys([*around, *names[:1]])
        peers.pop(node.name, None)
        own = set(interface_addresses(answered[node.name].interfaces))
        targets = [
            {"peer": peer, "address": address, "port": _answered_port(answered[peer])}
            for peer in peers
            for address in listed[peer]
            if address not in own  # every host has a 172.17.0.1 of its own, which would seem to answer
        ]
        return site.sessions[node.name].call(ROUTE_PROGRAM, {"targets": targets}, timeout_s=ROUTES_TIMEOUT_S)

    if len(answered) > 1:
        nodes = [each.host.node for each in answered.values()]
        _record_answers(
            answered, ROUTES, site.each(nodes, look, timeout_s=_timeout_for_all(site, nodes, ROUTES_TIMEOUT_S))
        )


def candidate_addresses(answers: Mapping[str, HostAnswers]) -> dict[str, list[str]]:
    """By host, the addresses at which others may reach it, at most MAX_ADDRESSES: the one where our own login came in,
    then those of its interfaces. Of a host that has more, these are the login's and those nearest to another host's:
    containers and virtual machines give a host many addresses that only it can use."""
    listed = {name: _dialable_addresses(one) for name, one in answers.items()}
    owners = values_by_key((address, name) for name, addresses in listed.items() for address in addresses)
    # An address that several hosts have, such as Docker's 172.17.0.1, is near no other host.
    numbers = sorted((address_number(address), names[0]) for address, names in owners.items() if len(names) == 1)
    chosen = {}
    for name, addresses in listed.items():
        if len(addresses) > MAX_ADDRESSES:
            first = addresses[:1] if _answered_login(answers[name]) else []
            bits = {address: common_address_bits(address, name, numbers) for address in addresses[len(first) :]}
            kept = {*first, *sorted(bits, key=bits.__getitem__, reverse=True)[: MAX_ADDRESSES - len(first)]}
            addresses = [address for address in addresses if address in kept]
        chosen[name] = addresses
    return chosen


def _answered_login(answers: HostAnswers) -> str | None:
    login = answers.survey.get("login")
    return str(login[0]) if login and is_dialable_address(str(login[0])) else None


def _dialable_addresses(answers: HostAnswers) -> list[str]:
    login = _answered_login(answers)
    return list(dict.fromkeys([*([login] if login else []), *interface_addresses(answers.interfaces)]))


def _answered_port(answers: HostAnswers) -> int:
    login = answers.survey.get("login")
    return int(login[1]) if login else answers.host.node.ssh.usual_port


def _record_answers(
    hosts: Mapping[str, HostAnswers], program: str, answers: Mapping[str, ProgramAnswer | BaseException]
) -> None:
    """Enters the answers of all hosts to one program. Raises unexpected errors."""
    for name, answer in answers.items():
        if isinstance(answer, (Unreachable, ProgramNotStarted, TimeoutError)):
            hosts[name].unanswered[program] = "no answer in time" if isinstance(answer, TimeoutError) else str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        elif program == ROUTES:
            hosts[name].routes = answer["targets"]
        else:
            setattr(hosts[name], program, answer)
