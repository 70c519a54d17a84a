"""Judges a host's answers: its address, its GPUs and InfiniBand ports, the Python that a job would use. Pure."""

from __future__ import annotations

import ipaddress
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.files.address import is_loopback
from runbook.model.grouping import values_by_key
from runbook.parsers.infiniband import Port, parse, ports_from_sysfs

REACHED_ANSWERS = ("open", "refused")


@dataclass(frozen=True, slots=True)
class SurveyInterface:
    """One network interface of a host, with the addresses at which others may reach it."""

    name: str
    mtu: int | None
    addresses: tuple[str, ...]


InterfacesByName = Mapping[str, SurveyInterface]


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where a host stands on the network. `doubt` says what could not be found out, or is odd."""

    address: str | None
    interface: SurveyInterface | None
    doubt: str | None = None


def usable_interfaces(host_facts: Mapping[str, Any]) -> dict[str, SurveyInterface]:
    """The interfaces that may carry a job's traffic: up, and with an address of their own."""
    found = {}
    for name, entry in host_facts.get("interfaces", {}).items():
        usable = tuple(address for address in entry["addresses"] if is_dialable_address(address))
        if usable and entry.get("state") != "DOWN":
            found[name] = SurveyInterface(name, entry.get("mtu"), usable)
    return found


def interface_addresses(interfaces: InterfacesByName) -> list[str]:
    """The addresses of the interfaces, IPv4 first: most programs dial these, and names mostly lead to them."""
    found = [address for interface in interfaces.values() for address in interface.addresses]
    return sorted(found, key=lambda address: ":" in address)


def choose_host_addresses(
    candidates: Mapping[str, Sequence[str]],
    interfaces: Mapping[str, InterfacesByName],
    routes: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, HostAddress]:
    """The address and the interface of every host, from its candidates (the likeliest first), its interfaces, and what
    it said of its way to others."""
    chosen = {name: _reachable_address(name, listed, routes) for name, listed in candidates.items()}
    return {
        name: HostAddress(address, _route_interface(address, chosen, interfaces[name], routes.get(name, ())), doubt)
        for name, (address, doubt) in chosen.items()
    }


def _reachable_address(
    name: str, candidates: Sequence[str], routes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[str | None, str | None]:
    """A host's address, and the doubt about it: the first candidate that all hosts that tried could reach, or else the
    candidate that most of them could reach."""
    if not candidates:
        return None, "no address on any interface but loopback"
    tried = values_by_key(
        (str(target["address"]), (other, str(target["answer"])))
        for other, targets in routes.items()
        for target in targets
        if target["peer"] == name
    )
    for address in candidates:
        if address in tried and all(answer in REACHED_ANSWERS for _, answer in tried[address]):
            return address, None
    if not tried:
        return candidates[0], None
    best = max(candidates, key=lambda address: sum(answer in REACHED_ANSWERS for _, answer in tried.get(address, ())))
    missed = [(other, answer) for other, answer in tried.get(best, ()) if answer not in REACHED_ANSWERS]
    if not missed:
        return best, None
    other, answer = missed[0]
    more = f", nor could {len(missed) - 1} more" if len(missed) > 1 else ""
    return best, f"{other} could not reach it ({answer}){more}: `runbook run` will say why"


def _route_interface(
    address: str | None,
    chosen: Mapping[str, tuple[str | None, str | None]],
    interfaces: InterfacesByName,
    targets: Iterable[Mapping[str, Any]],
) -> SurveyInterface | None:
    """The interface that carries the route to most of the others; if no route is known, the one with the address."""
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


def is_dialable_address(address: str) -> bool:
    """Whether another machine may dial an address: not if it is loopback, or holds on one link only."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (is_loopback(address) or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


def address_number(address: str) -> int:
    """The number of an address: sorted by it, addresses of one network are neighbours, and all of IPv6 are above
    IPv4."""
    ip = ipaddress.ip_address(address)
    return int(ip) if ip.version == 4 else int(ip) | 1 << 128


def common_address_bits(address: str, host: str, numbers: Sequence[tuple[int, str]]) -> int:
    """How many leading bits a host's address shares with the nearest address of another host, 0 to 32; for IPv6 a
    quarter of them, 0 to 16, since a network there has 64: near addresses of IPv4 come first. `numbers`: each host's
    own addresses as numbers, with the host, sorted; an address that is not among them is near none, 0."""
    own = address_number(address)
    at = bisect_left(numbers, (own, host))
    if at == len(numbers) or numbers[at] != (own, host):
        return 0
    left = next((numbers[one][0] for one in range(at - 1, -1, -1) if numbers[one][1] != host), None)
    right = next((numbers[one][0] for one in range(at + 1, len(numbers)) if numbers[one][1] != host), None)
    differing = min(((own ^ near).bit_length() for near in (left, right) if near is not None), default=129)
    return min(max(128 - differing, 0), 64) // 4 if own >> 128 else max(32 - differing, 0)


# GPUs and InfiniBand ports, from what the host's own tools printed.


@dataclass(frozen=True, slots=True)
class GpusFound:
    """The GPUs of a host. `count` is None if it could not be found out; `names` reads `8 x NVIDIA H100 80GB HBM3`.

    `doubt` says why, or what is odd, with `{}` in the place of the names of the hosts.
    """

    count: int | None
    names: str = ""
    doubt: str | None = None


def host_gpus(nvidia_smi: Mapping[str, Any], devices: int | None) -> GpusFound:
    """The GPUs of a host, from `nvidia-smi`'s lines, or if that is missing, from the driver's own list in /proc."""
    if nvidia_smi.get("missing"):
        if devices:
            return GpusFound(devices, f"{devices} by the driver's list", "nvidia-smi is not on {}")
        return GpusFound(0, doubt="nvidia-smi is not on {}")
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


def host_ib_ports(ibstat: Mapping[str, Any]) -> list[Port]:
    """The InfiniBand ports of a host, as ibstat prints them, or else as the kernel shows them."""
    ports = parse(str(ibstat.get("ibstat", {}).get("out") or ""))
    return ports or ports_from_sysfs(ibstat.get("sysfs") or {})


def active_ports(ports: Sequence[Port], link_layer: str) -> list[Port]:
    return [port for port in ports if port.state == "active" and port.link_layer.lower() == link_layer.lower()]


# The Python that a job would use: one with torch, of one version everywhere, at one path if there is one.


@dataclass(frozen=True, slots=True)
class PythonFound:
    """One Python of a host; `torch` is None if it has none."""

    path: str
    version: str
    torch: str | None
    cuda: str | None = None  # the CUDA that torch was built for, if any
    hip: str | None = None

    @property
    def about(self) -> str:
        built = f", CUDA {self.cuda}" if self.cuda else f", ROCm {self.hip}" if self.hip else ", no CUDA in it"
        return f"Python {self.version}, torch {self.torch}{built}"


def host_pythons(answer: Mapping[str, Any]) -> list[PythonFound]:
    """The Pythons that a host named, in its own order."""
    return [
        PythonFound(str(one["path"]), str(one["version"]), one.get("torch"), one.get("cuda"), one.get("hip"))
        for one in answer.get("pythons", [])
        if one.get("path")
    ]


def choose_pythons(found: Mapping[str, Sequence[PythonFound]], *, gpus: bool) -> dict[str, PythonFound]:
    """A Python with torch for every host that has one; torch that can use the GPUs before torch that cannot.

    torch must be of one version on all nodes, so that is looked for first, then one path for all.
    """
    with_torch = {name: [one for one in listed if one.torch] for name, listed in found.items()}
    with_torch = {name: listed for name, listed in with_torch.items() if listed}
    if not with_torch:
        return {}

    def merit(python: PythonFound) -> tuple[bool, tuple[int, ...]]:
        return gpus and bool(python.cuda or python.hip), _version_numbers(python.torch or "")

    def best(*, path: bool) -> PythonFound | None:
        """The best Python of those that every host has; with `path`, at the same path."""
        first, *others = with_torch.values()
        everywhere = [
            one for one in first if all(any(_is_same_torch(one, other, path=path) for other in rest) for rest in others)
        ]
        return max(everywhere, key=merit, default=None)

    of_one_path, of_one_version = best(path=True), best(path=False)
    if of_one_version is None:
        return {name: max(listed, key=merit) for name, listed in with_torch.items()}
    path = of_one_path is not None and merit(of_one_path)[0] >= merit(of_one_version)[0]
    chosen = of_one_path if path and of_one_path else of_one_version
    return {
        name: next(one for one in listed if _is_same_torch(chosen, one, path=path))
        for name, listed in with_torch.items()
    }


def _is_same_torch(one: PythonFound, other: PythonFound, *, path: bool) -> bool:
    return one.torch == other.torch and one.cuda == other.cuda and (not path or one.path == other.path)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version.partition("+")[0])[:3]))
