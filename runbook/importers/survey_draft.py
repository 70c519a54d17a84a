"""From what hosts said to an inventory; what is not known stands in it as a comment that says so. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import runbook
from runbook.checks.ibstat import rate
from runbook.files.address import is_ip, is_loopback
from runbook.files.inventory_draft import Draft, NodeDraft, Setting
from runbook.files.node_sets import folded
from runbook.files.nodes import NAME
from runbook.importers.survey import HostAnswers, SurveyHost, SurveyResult, candidates
from runbook.parsers.ibstat import Port, from_sysfs, parse


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """One host, judged."""

    answers: HostAnswers
    name: str
    place: HostAddress
    gpus: GpusFound
    python: PythonFound | None
    ports: Sequence[Port]


# Its comments: what a survey could not find out, or found and did not use.

MOST_NAMES = 6


def network_hints(seen: Sequence[SurveyedHost], interface: str | None) -> list[str]:
    """Interfaces besides the chosen one that every host has, and that may be the faster ones."""
    used = {one.place.interface.name for one in seen if one.place.interface}
    hints = []
    for name in seen[0].answers.interfaces:
        if name in used or not all(name in one.answers.interfaces for one in seen):
            continue
        first = seen[0].answers.interfaces[name]
        if re.match(r"(docker|virbr|br-|veth|cni|flannel|cali|lxc|tailscale)", name):
            continue
        hints.append(f"{name} is up on every node as well ({first.addresses[0]}, MTU {first.mtu} on {seen[0].name})")
    if interface is None:
        hints.insert(0, "interface: what carries the route between the nodes could not be found out")
    return hints


def fabric_hints(seen: Sequence[SurveyedHost], backend: str, *, written: bool) -> tuple[str, ...]:
    """Ports that are there and did not make it into the block: down, Ethernet, not on every host, or not used."""
    hints = []
    why = "gloo does not use it" if backend == "gloo" else "not every node has one of that name"
    for one in seen:
        idle = [f"{port.name} is {port.state}" for port in one.ports if port.state != "active"]
        ethernet = [f"{port.name} at {rate(port)}" for port in active(one.ports, "Ethernet")]
        unused = [] if written else [f"{port.name} at {rate(port)}" for port in active(one.ports, "InfiniBand")]
        if idle:
            hints.append(f"{one.name}: {', '.join(idle)}")
        if ethernet:
            hints.append(f"{one.name}: {', '.join(ethernet)}, Ethernet (RoCE)")
        if unused:
            hints.append(f"{one.name}: {', '.join(unused)}, InfiniBand; left out, as {why}")
    return tuple(hints)


def missing(seen: Sequence[SurveyedHost]) -> Iterable[str]:
    """What was looked for and not found, node by node."""
    for doubt, names in together((one.gpus.doubt, one.name) for one in seen if one.gpus.doubt):
        yield "gpus: " + doubt.replace("{}", names)
    for doubt, names in together((_no_python(one), one.name) for one in seen if one.python is None):
        yield "python: " + doubt.replace("{}", names)
    versions = {one.python.torch for one in seen if one.python}
    if len(versions) > 1:
        each = ", ".join(f"{one.python.torch} on {one.name}" for one in seen if one.python)
        yield f"python: the nodes have different versions of torch ({each}): a job needs one"


def _no_python(one: SurveyedHost) -> str:
    """Why a host has no Python for the job, with `{}` for its name."""
    if "pythons" in one.answers.unanswered:
        return "{} did not say in time which Pythons there are"
    found = pythons_of(one.answers.pythons)
    asked = ", ".join(python.path for python in found[:4]) + (", …" if len(found) > 4 else "")
    return "none with torch was found on {}" + (f" (asked {asked})" if found else "") + "; name the one that has it"


def together(doubts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is the same of several hosts, said once: the text, and the names of those."""
    same: dict[str, list[str]] = {}
    for doubt, name in doubts:
        same.setdefault(doubt, []).append(name)
    return [(doubt, _few(folded(names))) for doubt, names in same.items()]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


# The inventory.


def draft_of(hosts: Sequence[SurveyHost], survey: SurveyResult, name: str) -> Draft:
    """At least one host must have been reached."""
    seen = _judged(survey)
    names = {one.answers.name: one.name for one in seen}
    interface = _most(one.place.interface.name for one in seen if one.place.interface)
    backend, why = _backend(seen)
    expression = _hca(seen) if backend == "nccl" else None  # gloo does not use InfiniBand
    nodes = []
    for host in hosts:
        typed = host.node.name
        one = next((one for one in seen if one.answers.name == typed), None)
        if one is not None:
            nodes.append(_node(one, interface, backend))
        elif typed in survey.same:
            says = f"{typed} is the same machine as {names[survey.same[typed]]}, left out"
            nodes.append(NodeDraft(typed, {("address",): host.typed, **_login(host)}, (says,), left_out=True))
        else:
            failure = survey.failures[typed]
            says = f"{typed} was not reached: {failure.says.removeprefix(f'{typed}: ')} [{failure.cause}]"
            nodes.append(NodeDraft(typed, {("address",): host.typed, **_login(host)}, (says,), left_out=True))
    blocks: dict[str, Mapping[str, object]] = {
        "rendezvous": {"master": seen[0].name, "port": 29500, "backend": backend},
        "network": {"interface": interface} if interface else {},
        "infiniband": expression[0] if expression else {},
    }
    comments = {
        ("rendezvous", "master"): "rank 0; every rank dials its address",
        ("rendezvous", "backend"): why,
        ("network", "interface"): _about_interface(seen, interface),
        ("infiniband", "hca"): expression[1] if expression else "",
        ("defaults", "gpus"): _one_for_all(one.gpus.names for one in seen),
        ("defaults", "python"): _one_for_all(one.python.about if one.python else "" for one in seen),
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
            "network": (
                *network_hints(seen, interface),
                "ports: 29500-29510    # what your firewall lets through between the nodes",
            ),
            "infiniband": fabric_hints(seen, backend, written=expression is not None),
            "defaults": tuple(missing(seen)),
        },
    )


def _judged(survey: SurveyResult) -> list[SurveyedHost]:
    answers = survey.answers
    where = places(
        {name: candidates(one) for name, one in answers.items()},
        {name: one.interfaces for name, one in answers.items()},
        {name: one.routes for name, one in answers.items()},
    )
    gpus = {
        name: gpus_of(
            one.survey.get("nvidia_smi", {"err": one.unanswered.get("survey", "")}), one.survey.get("nvidia_devices")
        )
        for name, one in answers.items()
    }
    pythons = choose(
        {name: pythons_of(one.pythons) for name, one in answers.items()}, gpus=any(each.count for each in gpus.values())
    )
    names = _names(answers.values())
    return [
        SurveyedHost(one, names[name], where[name], gpus[name], pythons.get(name), ports_of(one.ibstat))
        for name, one in answers.items()
    ]


def _names(told: Iterable[HostAnswers]) -> dict[str, str]:
    """As they were typed; an address gets the host's own name, where that is one and nobody else has it."""
    told = list(told)
    own = {one.name: str(one.hello.get("hostname") or "").partition(".")[0] for one in told}
    counts = Counter([*own.values(), *(one.name for one in told if not _nameless(one))])
    return {
        one.name: own[one.name]
        if _nameless(one)
        and NAME.fullmatch(own[one.name])
        and own[one.name] not in ("localhost", "all")
        and counts[own[one.name]] == 1
        else one.name
        for one in told
    }


def _nameless(one: HostAnswers) -> bool:
    return is_ip(one.host.typed) or one.host.is_here


def _login(host: SurveyHost) -> dict[Setting, object]:
    ssh = host.node.ssh
    if host.is_here:
        return {("connection",): "local"}
    given = {"user": ssh.user, "port": ssh.port, "key": ssh.key, "jump": ssh.jump}
    return {("ssh", key): value for key, value in given.items() if value is not None}


def _node(one: SurveyedHost, interface: str | None, backend: str) -> NodeDraft:
    settings: dict[Setting, object] = {}
    says = []
    address = one.place.address
    if address is not None:
        settings["address",] = address
    if one.place.doubt:
        says.append(f"address: {one.place.doubt}")
    settings.update(_login(one.answers.host))
    if not one.answers.host.is_here and one.answers.host.typed != (address or one.name):
        settings["ssh", "host"] = one.answers.host.typed
    if one.python:
        settings["python",] = one.python.path
    if one.gpus.count:
        settings["gpus",] = one.gpus.count
    mine = one.place.interface
    if mine and mine.name != interface:
        if backend == "nccl":
            settings["env", "NCCL_SOCKET_IFNAME"] = mine.name
        settings["env", "GLOO_SOCKET_IFNAME"] = mine.name  # gloo carries what stays on the CPU in either job
    return NodeDraft(one.name, settings, tuple(says))


def _backend(seen: Sequence[SurveyedHost]) -> tuple[str, str]:
    without = next((one for one in seen if not one.gpus.count), None)
    if without is None:
        return "nccl", "every node has GPUs"
    known = without.gpus.count == 0 or without.gpus.doubt is None
    return "gloo", f"{without.name} has no GPUs" if known else f"no GPUs were found on {without.name}"


def _about_interface(seen: Sequence[SurveyedHost], interface: str | None) -> str:
    """What carries the route, how large its packets are, and how fast it says it is."""
    with_it = [one for one in seen if one.place.interface and one.place.interface.name == interface]
    mtus = together(
        (str(one.place.interface.mtu), one.name) for one in with_it if one.place.interface and one.place.interface.mtu
    )
    speeds = sorted({int(speed) for one in with_it if (speed := one.answers.survey.get("speeds", {}).get(interface))})
    what = "carries the route between the nodes" if len(seen) > 1 else "has the node's address"
    parts = [what if len(with_it) == len(seen) else f"{what} on {len(with_it)} of {len(seen)}; the others name theirs"]
    if len(mtus) == 1:
        parts.append(f"MTU {mtus[0][0]}")
    elif mtus:
        parts.append("MTU differs: " + ", ".join(f"{mtu} on {names}" for mtu, names in mtus))
    if speeds:
        parts.append(" or ".join(f"{speed / 1000:g} Gbit/s" for speed in speeds))
    return "; ".join(parts)


def _hca(seen: Sequence[SurveyedHost]) -> tuple[dict[str, object], str] | None:
    """The InfiniBand ports that are active on every host under one name, and the rate that all of them have."""
    ports = [active(one.ports, "InfiniBand") for one in seen]
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


def _most(names: Iterable[str]) -> str | None:
    counts = Counter(names)
    return counts.most_common(1)[0][0] if counts else None


def _one_for_all(texts: Iterable[str]) -> str:
    """The text that all share; none where they differ."""
    distinct = set(texts)
    return distinct.pop() if len(distinct) == 1 else ""


# What a host's answers mean: its address, its GPUs and InfiniBand ports, the Python that a job would use.

REACHED = ("open", "refused")


@dataclass(frozen=True, slots=True)
class SurveyInterface:
    name: str
    mtu: int | None
    addresses: tuple[str, ...]


Interfaces = Mapping[str, SurveyInterface]


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where a host stands on the network. `doubt` says what could not be found out, or is odd."""

    address: str | None
    interface: SurveyInterface | None
    doubt: str | None = None


def interfaces_of(reach: Mapping[str, Any]) -> dict[str, SurveyInterface]:
    """The interfaces that may carry a job's traffic: up, and with an address of their own."""
    found = {}
    for name, entry in reach.get("interfaces", {}).items():
        usable = tuple(address for address in entry["addresses"] if is_usable(address))
        if usable and entry.get("state") != "DOWN":
            found[name] = SurveyInterface(name, entry.get("mtu"), usable)
    return found


def addresses_of(interfaces: Interfaces) -> list[str]:
    """IPv4 first: what most programs dial, and where names mostly lead."""
    found = [address for interface in interfaces.values() for address in interface.addresses]
    return sorted(found, key=lambda address: ":" in address)


def places(
    candidates: Mapping[str, Sequence[str]],
    interfaces: Mapping[str, Interfaces],
    routes: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, HostAddress]:
    """Of every host its candidates (the likeliest first), its interfaces, and what it said of its way to others."""
    chosen = {name: _address(name, listed, routes) for name, listed in candidates.items()}
    return {
        name: HostAddress(address, _interface(address, chosen, interfaces[name], routes.get(name, ())), doubt)
        for name, (address, doubt) in chosen.items()
    }


def _address(
    name: str, candidates: Sequence[str], routes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[str | None, str | None]:
    """The first candidate that all who tried could reach; else the one that most could."""
    if not candidates:
        return None, "no address on any interface but loopback"
    tried: dict[str, list[tuple[str, str]]] = {}
    for other, targets in routes.items():
        for target in targets:
            if target["peer"] == name:
                tried.setdefault(target["address"], []).append((other, str(target["answer"])))
    for address in candidates:
        if address in tried and all(answer in REACHED for _, answer in tried[address]):
            return address, None
    if not tried:
        return candidates[0], None
    best = max(candidates, key=lambda address: sum(answer in REACHED for _, answer in tried.get(address, ())))
    missed = [(other, answer) for other, answer in tried.get(best, ()) if answer not in REACHED]
    if not missed:
        return best, None
    other, answer = missed[0]
    more = f", nor could {len(missed) - 1} more" if len(missed) > 1 else ""
    return best, f"{other} could not reach it ({answer}){more}: `runbook run` will say why"


def _interface(
    address: str | None,
    chosen: Mapping[str, tuple[str | None, str | None]],
    interfaces: Interfaces,
    targets: Iterable[Mapping[str, Any]],
) -> SurveyInterface | None:
    """What carries the route to most of the others; alone, the interface that has the address."""
    by_address = {one: interface for interface in interfaces.values() for one in interface.addresses}
    used: Counter[str] = Counter()
    for target in targets:
        if target["address"] == chosen.get(target["peer"], (None, None))[0] and target["source"]:
            known = by_address.get(target["source"])
            name = known.name if known else target["interface"]
            if name in interfaces:
                used[name] += 1
    if used:
        return interfaces[used.most_common(1)[0][0]]
    return by_address.get(address or "")


def is_usable(address: str) -> bool:
    """Whether another machine may dial it: not loopback, not of one link only."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (is_loopback(address) or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


# GPUs and InfiniBand ports, from what the host's own tools printed.


@dataclass(frozen=True, slots=True)
class GpusFound:
    """`count` is None where nobody could look; `names` reads `8 x NVIDIA H100 80GB HBM3`.

    `doubt` says why or what is odd, with `{}` where the hosts go of which that is true.
    """

    count: int | None
    names: str = ""
    doubt: str | None = None


def gpus_of(nvidia_smi: Mapping[str, Any], devices: int | None) -> GpusFound:
    """From `nvidia-smi`'s lines; where it is missing, from the driver's own list in /proc."""
    if nvidia_smi.get("missing"):
        if devices:
            return GpusFound(devices, f"{devices} by the driver's list", "nvidia-smi is not on {}")
        return GpusFound(None, doubt="nvidia-smi is not on {}")
    if nvidia_smi.get("timed_out"):
        return GpusFound(devices, doubt="nvidia-smi does not return on {}: look at `dmesg | grep -i nvrm` there")
    rows = [line.split(", ") for line in str(nvidia_smi.get("out") or "").splitlines() if line.strip()]
    sound = [row for row in rows if len(row) >= 3 and row[0].strip().isdigit()]
    if nvidia_smi.get("code") != 0 or len(sound) != len(rows):
        said = str(nvidia_smi.get("out") or "") + str(nvidia_smi.get("err") or "")
        first = next((line.strip() for line in said.splitlines() if line.strip()), "it prints nothing")
        if "no devices were found" in said.lower():
            return GpusFound(0, doubt="nvidia-smi finds no devices on {}")
        return GpusFound(None, doubt=f"nvidia-smi fails on {{}}: {first[:100]}")
    kinds = Counter(row[2].strip() for row in sound)
    return GpusFound(len(sound), ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))


def ports_of(ibstat: Mapping[str, Any]) -> list[Port]:
    """Ports as ibstat prints them, or as the kernel shows them."""
    ports = parse(str(ibstat.get("ibstat", {}).get("out") or ""))
    return ports or from_sysfs(ibstat.get("sysfs") or {})


def active(ports: Sequence[Port], link_layer: str) -> list[Port]:
    return [port for port in ports if port.state == "active" and port.link_layer.lower() == link_layer.lower()]


# The Python that a job would use: one with torch, of one version everywhere, at one path if there is one.


@dataclass(frozen=True, slots=True)
class PythonFound:
    path: str
    version: str
    torch: str | None
    cuda: str | None = None  # the CUDA that torch was built for; None: none
    hip: str | None = None

    @property
    def about(self) -> str:
        built = f", CUDA {self.cuda}" if self.cuda else f", ROCm {self.hip}" if self.hip else ", no CUDA in it"
        return f"Python {self.version}, torch {self.torch}{built}"


def pythons_of(answer: Mapping[str, Any]) -> list[PythonFound]:
    """What a host said, its own order kept."""
    return [
        PythonFound(str(one["path"]), str(one["version"]), one.get("torch"), one.get("cuda"), one.get("hip"))
        for one in answer.get("pythons", [])
        if one.get("path")
    ]


def choose(found: Mapping[str, Sequence[PythonFound]], *, gpus: bool) -> dict[str, PythonFound]:
    """A Python with torch for every host that has one; torch that can use the GPUs before torch that cannot.

    torch must be of one version on all nodes, so that is looked for first, then one path for all.
    """
    with_torch = {name: [one for one in listed if one.torch] for name, listed in found.items()}
    with_torch = {name: listed for name, listed in with_torch.items() if listed}
    if not with_torch:
        return {}

    def merit(python: PythonFound) -> tuple[bool, tuple[int, ...]]:
        return gpus and bool(python.cuda or python.hip), _numbers(python.torch or "")

    hosts = list(with_torch.values())
    paths = [one for one in hosts[0] if all(any(_alike(one, other, path=True) for other in rest) for rest in hosts[1:])]
    versions = [
        one for one in hosts[0] if all(any(_alike(one, other, path=False) for other in rest) for rest in hosts[1:])
    ]
    best_path = max(paths, key=merit, default=None)
    best_version = max(versions, key=merit, default=None)
    if best_path is not None and best_version is not None and merit(best_path)[0] >= merit(best_version)[0]:
        return {
            name: next(one for one in listed if _alike(best_path, one, path=True))
            for name, listed in with_torch.items()
        }
    if best_version is not None:
        return {
            name: next(one for one in listed if _alike(best_version, one, path=False))
            for name, listed in with_torch.items()
        }
    return {name: max(listed, key=merit) for name, listed in with_torch.items()}


def _alike(one: PythonFound, other: PythonFound, *, path: bool) -> bool:
    return one.torch == other.torch and one.cuda == other.cuda and (not path or one.path == other.path)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version.partition("+")[0])[:3]))
