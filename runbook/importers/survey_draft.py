"""Makes an inventory from the answers of hosts; unknown values become comments. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import runbook
from runbook.checks.ibstat import port_rate_text
from runbook.files.address import is_ip
from runbook.files.inventory_draft import Draft, NodeDraft, SettingPath
from runbook.files.node_sets import folded_names
from runbook.importers.survey import ROUTES, HostAnswers, SurveyHost, SurveyResult, candidate_addresses
from runbook.importers.survey_facts import (
    GpusFound,
    HostAddress,
    PythonFound,
    active_ports,
    choose_host_addresses,
    choose_pythons,
    host_gpus,
    host_ib_ports,
    host_pythons,
)
from runbook.model.grouping import values_by_key
from runbook.model.inventory import NODE_NAME
from runbook.model.nccl_devices import is_local_only_interface
from runbook.model.units import first_items_text
from runbook.parsers.infiniband import Port
from runbook.transport.node_answers import HOST_FACTS_PROGRAM, IBSTAT_PROGRAM, PYTHONS_PROGRAM, SURVEY_PROGRAM


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """What was judged from the answers of one host. `name` is its name as a node."""

    answers: HostAnswers
    name: str
    place: HostAddress
    gpus: GpusFound
    python: PythonFound | None
    ports: Sequence[Port]


# Comments of the inventory: what a survey could not find out, or found and did not use.


def network_hints(seen: Sequence[SurveyedHost], interface: str | None) -> list[str]:
    """Comments on interfaces besides the chosen one that every host has, and that may be the faster ones."""
    used = {one.place.interface.name for one in seen if one.place.interface}
    hints = [*unanswered_hints(seen, HOST_FACTS_PROGRAM), *unanswered_hints(seen, ROUTES)]
    for name in seen[0].answers.interfaces:
        if name in used or not all(name in one.answers.interfaces for one in seen):
            continue
        first = seen[0].answers.interfaces[name]
        if is_local_only_interface(name):
            continue
        hints.append(f"{name} is up on every node as well ({first.addresses[0]}, MTU {first.mtu} on {seen[0].name})")
    if interface is None:
        hints.insert(0, "interface: what carries the route between the nodes could not be found out")
    return hints


def fabric_hints(seen: Sequence[SurveyedHost], backend: str | None, *, written: bool) -> tuple[str, ...]:
    """Comments on ports that exist and are not in the block: down, Ethernet, not on every host, or not used."""
    hints = list(unanswered_hints(seen, IBSTAT_PROGRAM))
    why = "gloo does not use it" if backend == "gloo" else "not every node is known to have one of that name"
    for one in seen:
        idle = [f"{port.name} is {port.state}" for port in one.ports if port.state != "active"]
        ethernet = [f"{port.name} at {port_rate_text(port)}" for port in active_ports(one.ports, "Ethernet")]
        unused = (
            []
            if written
            else [f"{port.name} at {port_rate_text(port)}" for port in active_ports(one.ports, "InfiniBand")]
        )
        if idle:
            hints.append(f"{one.name}: {', '.join(idle)}")
        if ethernet:
            hints.append(f"{one.name}: {', '.join(ethernet)}, Ethernet (RoCE)")
        if unused:
            hints.append(f"{one.name}: {', '.join(unused)}, InfiniBand; left out, as {why}")
    return tuple(hints)


_FACTS_BY_PROGRAM = {
    HOST_FACTS_PROGRAM: "interfaces",
    ROUTES: "routes",
    IBSTAT_PROGRAM: "InfiniBand ports",
    SURVEY_PROGRAM: "GPUs",
    PYTHONS_PROGRAM: "Pythons",
}


def unanswered_hints(seen: Sequence[SurveyedHost], program: str) -> Iterable[str]:
    """Yields sentences on the hosts that did not answer `program`, and why."""
    for why, names in texts_with_host_names(
        (whys[program], one.name) for one in seen if program in (whys := one.answers.unanswered)
    ):
        yield f"the {_FACTS_BY_PROGRAM[program]} of {names} are not known: {why}"


def gpu_and_python_hints(seen: Sequence[SurveyedHost]) -> Iterable[str]:
    """Yields comments on GPUs and Pythons that were looked for and not found, or are odd, with the names of the
    nodes."""
    yield from (*unanswered_hints(seen, SURVEY_PROGRAM), *unanswered_hints(seen, PYTHONS_PROGRAM))
    for doubt, names in texts_with_host_names((one.gpus.doubt, one.name) for one in seen if one.gpus.doubt):
        yield "gpus: " + doubt.replace("{}", names)
    for doubt, names in texts_with_host_names(
        (_no_python_reason(one), one.name)
        for one in seen
        if one.python is None and PYTHONS_PROGRAM not in one.answers.unanswered
    ):
        yield "python: " + doubt.replace("{}", names)
    versions = {one.python.torch for one in seen if one.python}
    if len(versions) > 1:
        each = ", ".join(f"{one.python.torch} on {one.name}" for one in seen if one.python)
        yield f"python: the nodes have different versions of torch ({each}): a job needs one"


def _no_python_reason(one: SurveyedHost) -> str:
    """Why a host has no Python for the job, with `{}` for its name."""
    found = host_pythons(one.answers.pythons)
    asked = ", ".join(python.path for python in found[:4]) + (", …" if len(found) > 4 else "")
    return "none with torch was found on {}" + (f" (asked {asked})" if found else "") + "; name the one that has it"


def texts_with_host_names(doubts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each text once, with the names of the hosts for which it is the same."""
    return [(doubt, first_items_text(folded_names(names))) for doubt, names in values_by_key(doubts).items()]


# The inventory.


def draft_of_survey(hosts: Sequence[SurveyHost], survey: SurveyResult, name: str) -> Draft:
    """The inventory of the hosts, at least one of which was reached."""
    seen = _surveyed_hosts(survey)
    names = {one.answers.name: one.name for one in seen}
    interface = _most_common_name(one.place.interface.name for one in seen if one.place.interface)
    by_name = {one.answers.name: one for one in seen}
    backend, why = _backend_and_reason(seen)
    expression = _infiniband_block(seen) if backend != "gloo" else None  # gloo does not use InfiniBand
    nodes = []
    for host in hosts:
        typed = host.node.name
        one = by_name.get(typed)
        if one is not None:
            nodes.append(_surveyed_node(one, interface, backend))
        elif typed in survey.same:
            says = f"{typed} is the same machine as {names[survey.same[typed]]}, left out"
            nodes.append(NodeDraft(typed, {("address",): host.typed, **_login_settings(host)}, (says,), left_out=True))
        else:
            failure = survey.failures[typed]
            says = f"{typed} was not reached: {failure.says.removeprefix(f'{typed}: ')} [{failure.cause}]"
            nodes.append(NodeDraft(typed, {("address",): host.typed, **_login_settings(host)}, (says,), left_out=True))
    blocks: dict[str, Mapping[str, object]] = {
        "rendezvous": {"master": seen[0].name, "port": 29500} | ({"backend": backend} if backend else {}),
        "network": {"interface": interface} if interface else {},
        "infiniband": expression[0] if expression else {},
    }
    comments = {
        ("rendezvous", "master"): "rank 0; every rank dials its address",
        ("rendezvous", "backend"): why,
        ("network", "interface"): _interface_comment(seen, interface),
        ("infiniband", "hca"): expression[1] if expression else "",
        ("defaults", "gpus"): _shared_text(one.gpus.names for one in seen),
        ("defaults", "python"): _shared_text(one.python.about if one.python else "" for one in seen),
    }
    return Draft(
        name=name,
        nodes=tuple(nodes),
        header=(
            f"Made by `runbook inventory init` ({runbook.__version__}) from what the hosts themselves said.",
            "Look it over, then try it: runbook run two_node_allreduce -i THIS_FILE",
        ),
        blocks=blocks,
        comments={key: text for key, text in comments.items() if text},
        hints={
            "rendezvous": () if backend else (why,),
            "network": (
                *network_hints(seen, interface),
                "ports: 29500-29510    # what your firewall lets through between the nodes",
            ),
            "infiniband": fabric_hints(seen, backend, written=expression is not None),
            "defaults": tuple(gpu_and_python_hints(seen)),
        },
    )


def _surveyed_hosts(survey: SurveyResult) -> list[SurveyedHost]:
    answers = survey.answers
    where = choose_host_addresses(
        candidate_addresses(answers),
        {name: one.interfaces for name, one in answers.items()},
        {name: one.routes for name, one in answers.items()},
    )
    gpus = {
        name: host_gpus(one.survey["nvidia_smi"], one.survey.get("nvidia_devices")) if one.survey else GpusFound(None)
        for name, one in answers.items()
    }
    pythons = choose_pythons(
        {name: host_pythons(one.pythons) for name, one in answers.items()},
        gpus=any(each.count for each in gpus.values()),
    )
    names = _node_name_by_host(answers.values())
    return [
        SurveyedHost(one, names[name], where[name], gpus[name], pythons.get(name), host_ib_ports(one.ibstat))
        for name, one in answers.items()
    ]


def _node_name_by_host(hosts: Iterable[HostAnswers]) -> dict[str, str]:
    """The name of each host as a node: as typed, or for an address the host's own name, if no other host has that."""
    hosts = list(hosts)
    own = {one.name: str(one.hello.get("hostname") or "").partition(".")[0] for one in hosts}
    counts = Counter([*own.values(), *(one.name for one in hosts if not _lacks_host_name(one))])
    return {
        one.name: own[one.name]
        if _lacks_host_name(one)
        and NODE_NAME.fullmatch(own[one.name])
        and own[one.name] not in ("localhost", "all")
        and counts[own[one.name]] == 1
        else one.name
        for one in hosts
    }


def _lacks_host_name(one: HostAnswers) -> bool:
    return is_ip(one.host.typed) or one.host.is_here


def _login_settings(host: SurveyHost) -> dict[SettingPath, object]:
    ssh = host.node.ssh
    if host.is_here:
        return {("connection",): "local"}
    given = {"user": ssh.user, "port": ssh.port, "key": ssh.key, "jump": ssh.jump}
    return {("ssh", key): value for key, value in given.items() if value is not None}


def _surveyed_node(one: SurveyedHost, interface: str | None, backend: str | None) -> NodeDraft:
    settings: dict[SettingPath, object] = {}
    says = []
    address = one.place.address
    if address is not None:
        settings["address",] = address
    if one.place.doubt and (address is not None or HOST_FACTS_PROGRAM not in one.answers.unanswered):
        says.append(f"address: {one.place.doubt}")
    settings.update(_login_settings(one.answers.host))
    if not one.answers.host.is_here and one.answers.host.typed != (address or one.name):
        settings["ssh", "host"] = one.answers.host.typed
    if one.python:
        settings["python",] = one.python.path
    if one.gpus.count:
        settings["gpus",] = one.gpus.count
    mine = one.place.interface
    if mine and mine.name != interface:
        if backend != "gloo":
            settings["env", "NCCL_SOCKET_IFNAME"] = mine.name
        settings["env", "GLOO_SOCKET_IFNAME"] = mine.name  # gloo carries what stays on the CPU in either job
    return NodeDraft(one.name, settings, tuple(says))


def _backend_and_reason(seen: Sequence[SurveyedHost]) -> tuple[str | None, str]:
    """The backend, None if it depends on GPUs that could not be counted, and the reason."""
    without = next((one for one in seen if one.gpus.count == 0), None)
    if without is not None:
        return "gloo", f"no GPUs were found on {without.name}"
    unknown = [one.name for one in seen if one.gpus.count is None]
    if not unknown:
        return "nccl", "every node has GPUs"
    nodes = first_items_text(folded_names(unknown))
    return None, f"backend: nccl once every node has `gpus`, which are not known of {nodes}; until then gloo"


def _interface_comment(seen: Sequence[SurveyedHost], interface: str | None) -> str:
    """The comment on the interface: on how many hosts it carries the route, its MTU, and the speed that it reports."""
    with_it = [one for one in seen if one.place.interface and one.place.interface.name == interface]
    mtus = texts_with_host_names(
        (str(one.place.interface.mtu), one.name) for one in with_it if one.place.interface and one.place.interface.mtu
    )
    speeds = sorted({int(speed) for one in with_it if (speed := one.answers.survey.get("speeds", {}).get(interface))})
    what = "carries the route between the nodes" if len(seen) > 1 else "has the node's address"
    theirs = "; the others name theirs" if all(one.place.interface for one in seen) else ""
    parts = [what if len(with_it) == len(seen) else f"{what} on {len(with_it)} of {len(seen)}{theirs}"]
    if len(mtus) == 1:
        parts.append(f"MTU {mtus[0][0]}")
    elif mtus:
        parts.append("MTU differs: " + ", ".join(f"{mtu} on {names}" for mtu, names in mtus))
    if speeds:
        parts.append(" or ".join(f"{speed / 1000:g} Gbit/s" for speed in speeds))
    return "; ".join(parts)


def _infiniband_block(seen: Sequence[SurveyedHost]) -> tuple[dict[str, object], str] | None:
    """The InfiniBand ports that are active on every host under one name, and the rate that all of them have."""
    ports = [active_ports(one.ports, "InfiniBand") for one in seen]
    if not all(ports):
        return None
    common = [port.hca for port in ports[0] if all(any(port.hca == other.hca for other in rest) for rest in ports[1:])]
    if not common:
        return None
    rates = [port.rate_gbps for each in ports for port in each if port.hca in common and port.rate_gbps]
    block: dict[str, object] = {"hca": "=" + ",".join(dict.fromkeys(common))}
    if rates:
        slowest = min(rates)
        block["min_rate_gbps"] = int(slowest) if slowest == int(slowest) else slowest
    return block, "active on every node; `=` means exactly these names"


def _most_common_name(names: Iterable[str]) -> str | None:
    counts = Counter(names)
    return counts.most_common(1)[0][0] if counts else None


def _shared_text(texts: Iterable[str]) -> str:
    """The text that all share; empty if they differ."""
    distinct = set(texts)
    return distinct.pop() if len(distinct) == 1 else ""
