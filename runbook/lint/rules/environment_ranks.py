"""Rules about the environment that a node's ranks get from all levels: contradictions in it, and with the inventory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from runbook.files.yaml_document import Document, KeyPath
from runbook.lint.rule_inputs import NETWORK_INTERFACE_KEY, InventoryFile, PlaybookFile
from runbook.lint.rules.environment import (
    WrittenVariable,
    inventory_variables,
    playbook_variables,
    problem_at,
    variables_for_all_nodes,
)
from runbook.lint.rules.environment_names import VariableFault
from runbook.lint.rules.environment_values import (
    adapter_faults,
    gloo_faults,
    interface_faults,
    is_switched_on,
    number_read,
    shortened_quote,
    virtual_interface,
)
from runbook.lint.variables import known_variables
from runbook.model.errors import Problem, Span
from runbook.model.grouping import values_by_key
from runbook.model.inventory import EnvValue, Inventory, Node
from runbook.model.nccl_devices import parse_device_selection


@dataclass(frozen=True, slots=True)
class EnvironmentOfRanks:
    """What the ranks of one node get. `env` holds the variables with a known value, `NCCL_IB_HCA` from `infiniband:`
    included."""

    env: Mapping[str, str]
    interface: str | None
    infiniband: bool
    gpus: tuple[int, ...] | None  # None if a wrong value makes them uncertain
    slots: int
    windows: bool


_DEVICE = re.compile(r"[0-9]{1,6}|(GPU|MIG)-\S+", re.ASCII)  # CUDA stops reading at any other word: -1, all


class Contradiction(NamedTuple):
    """A contradiction between variables, or with the inventory. `names` are the variables; the problem is shown at the
    first of them that the file has."""

    id: str
    names: tuple[str, ...]
    message: str
    help: str


def find_contradictions(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    """The contradictions in what the ranks of one node get, by all rules."""
    for rule in _RULES:
        yield from rule(ranks)


def _infiniband_off(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    net = ranks.env.get("NCCL_NET", "").strip()
    disabled = _number_in_environment(ranks, "NCCL_IB_DISABLE") not in (None, 0)
    if not (disabled or net.lower() == "socket") or not (ranks.infiniband or ranks.env.get("NCCL_IB_HCA")):
        return
    name = "NCCL_IB_DISABLE" if disabled else "NCCL_NET"
    there = "`infiniband:` describes it" if ranks.infiniband else "NCCL_IB_HCA chooses its adapters"
    message = f"`{name}={ranks.env[name][:40]}` switches InfiniBand and RoCE off, and {there}"
    yield Contradiction(
        "infiniband-off", (name, "NCCL_IB_HCA"), message, "keep one of the two; over TCP a job is ten times slower"
    )


def _peer_to_peer_conflict(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    level = ranks.env.get("NCCL_P2P_LEVEL", "").strip()
    if _number_in_environment(ranks, "NCCL_P2P_DISABLE") == 1 and level and level not in ("LOC", "0"):
        message = f"`NCCL_P2P_DISABLE=1` wins, and `NCCL_P2P_LEVEL={level[:40]}` is never looked at"
        yield Contradiction("p2p-conflict", ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"), message, "keep one of the two")


def _nothing_to_dump(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    dump = ranks.env.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if (
            is_switched_on(known_variables()["TORCH_NCCL_DUMP_ON_TIMEOUT"], dump)
            and _number_in_environment(ranks, name) == 0
        ):
            message = f"with `{name}=0` nothing is recorded that TORCH_NCCL_DUMP_ON_TIMEOUT could write"
            yield Contradiction(
                "nothing-to-dump", (name, "TORCH_NCCL_DUMP_ON_TIMEOUT"), message, "2000 entries are usual"
            )
            return


def _visible_devices(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    text = ranks.env.get("CUDA_VISIBLE_DEVICES")
    if text is None or ranks.gpus is None:
        return
    devices = list(takewhile(_DEVICE.fullmatch, (one.strip() for one in text.split(","))))
    numbers = {int(one) for one in devices if re.fullmatch("[0-9]{1,6}", one, re.ASCII)}
    same = numbers == set(ranks.gpus) if len(numbers) == len(devices) else len(devices) == len(ranks.gpus)
    if same:
        return
    given = f"gives {_gpus_in_words(ranks.gpus)}" if ranks.gpus else "gives the node no GPUs"
    message = (
        f"`CUDA_VISIBLE_DEVICES` shows {shortened_quote(text) if devices else 'no GPU'}, and the inventory {given}"
    )
    if numbers:
        help = f"write `gpus: [{', '.join(map(str, sorted(numbers)))}]`, and leave the variable to runbook"
    else:
        help = "say with `gpus` which ones the ranks get, and leave the variable to runbook"
    yield Contradiction("visible-devices", ("CUDA_VISIBLE_DEVICES",), message, help)


def _gpus_in_words(gpus: tuple[int, ...]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if len(gpus) == 2:
        return f"GPUs {min(gpus)} and {max(gpus)}"
    together = sorted(gpus) == list(range(min(gpus), max(gpus) + 1))
    return f"GPUs {min(gpus)} to {max(gpus)}" if together else f"GPUs {shortened_quote(', '.join(map(str, gpus)))}"


def _too_many_sockets(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    names = ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")
    sockets, threads = (_number_in_environment(ranks, name) for name in names)
    if sockets is not None and threads is not None and sockets * threads > 64:
        message = f"{sockets} sockets for each of {threads} threads are {sockets * threads}, and NCCL allows 64"
        yield Contradiction("too-many-sockets", names, message, "the product of the two may be 64 at most")


def _min_above_max(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    for kind in ("CTAS", "NCHANNELS", "P2P_NCHANNELS", "NRINGS"):
        least, most = (
            _number_in_environment(ranks, f"NCCL_MIN_{kind}"),
            _number_in_environment(ranks, f"NCCL_MAX_{kind}"),
        )
        if least is not None and most is not None and least > most > 0:
            message = f"`NCCL_MIN_{kind}` is {least} and `NCCL_MAX_{kind}` is {most}"
            names = (f"NCCL_MIN_{kind}", f"NCCL_MAX_{kind}")
            yield Contradiction("min-above-max", names, message, "the least may not be more than the most")


def _gid_index_on_infiniband(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    index = _number_in_environment(ranks, "NCCL_IB_GID_INDEX")
    chosen = parse_device_selection(ranks.interface or "")
    over_ipoib = not chosen.excludes and chosen.names and all(name.startswith("ib") for name in chosen.names)
    if index is not None and index > 0 and ranks.infiniband and over_ipoib:
        message = f"GIDs are RoCE's, and the interface {shortened_quote(','.join(chosen.names))} is InfiniBand's"
        help = "leave it out: InfiniBand routes by LID, and since NCCL 2.21 RoCE finds its GID as well"
        yield Contradiction("gid-index-on-infiniband", ("NCCL_IB_GID_INDEX",), message, help)


def _shared_log_file(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    file = ranks.env.get("NCCL_DEBUG_FILE", "")
    if file and ranks.slots > 1 and "%p" not in file and not file.startswith("/dev/"):
        message = f"the {ranks.slots} ranks of a node write over each other in {shortened_quote(file)}"
        help = f"%h stands for the host and %p for the process: {file[:40].removesuffix('.log')}.%h.%p"
        yield Contradiction("shared-log-file", ("NCCL_DEBUG_FILE",), message, help)


def _libuv_on_windows(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    if ranks.windows and ranks.env.get("USE_LIBUV") == "1":
        message = "PyTorch's wheels for Windows are built without libuv: with `USE_LIBUV=1` no rank can join"
        yield Contradiction("libuv-on-windows", ("USE_LIBUV",), message, "leave it out: 0 is the default there")


def _number_in_environment(ranks: EnvironmentOfRanks, name: str) -> int | None:
    text = ranks.env.get(name)
    return number_read(known_variables()[name], text) if text else None


_RULES: tuple[Callable[[EnvironmentOfRanks], Iterator[Contradiction]], ...] = (
    _infiniband_off,
    _peer_to_peer_conflict,
    _nothing_to_dump,
    _visible_devices,
    _too_many_sockets,
    _min_above_max,
    _gid_index_on_infiniband,
    _shared_log_file,
    _libuv_on_windows,
)


# Contradictions between levels: what a node's ranks get when all levels are folded into one environment.


def _nodes_alike(nodes: Iterable[Node]) -> Iterable[list[Node]]:
    """The nodes, those with the same environment and GPUs in one list, which is judged once."""
    return values_by_key(
        ((*node.env.items(), node.gpus, node.processes, node.windows), node) for node in nodes
    ).values()


def contradictions_in_inventory(file: InventoryFile) -> Iterator[Problem]:
    """Reports contradictions of the levels of an inventory, each once, with the nodes that have it."""
    everywhere = len(file.inventory.nodes)
    nodes_at = values_by_key(
        ((one.id, _contradiction_span(file, node, one), one.message, one.help), node.name)
        for nodes in _nodes_alike(file.inventory.nodes)
        for one in find_contradictions(_environment_of_node(file, nodes[0], {**file.inventory.env, **nodes[0].env}))
        for node in nodes
    )
    for (id, span, message, help), nodes in nodes_at.items():
        where = "" if len(nodes) in (1, everywhere) else f" (on {nodes[0]} and {len(nodes) - 1} more)"
        yield Problem(f"env.{id}", message + where, span, help)


def contradictions_in_playbook(file: PlaybookFile) -> Iterator[Problem]:
    """Reports contradictions that a launch's own `env` brings in, if it does so on every node: the stage may be for
    some nodes only."""
    if file.inventory is None or not isinstance(file.document.data, dict):
        return
    for settings in values_by_key((setting.block, setting) for setting in playbook_variables(file.document)).values():
        texts = {setting.name: setting.text for setting in settings}
        for one in _launch_contradictions(file.inventory, texts):
            keys = next(setting.keys for name in one.names for setting in settings if setting.name == name)
            yield Problem(f"env.{one.id}", one.message, file.document.span(*keys), one.help)


def _launch_contradictions(inventory: InventoryFile, texts: Mapping[str, str | None]) -> list[Contradiction]:
    """The contradictions that the variables `texts` bring in on every node of the inventory."""
    judged: list[list[Contradiction]] = []
    for node, *_ in _nodes_alike(inventory.inventory.nodes):
        env = {**inventory.inventory.env, **node.env}
        before = set(find_contradictions(_environment_of_node(inventory, node, env)))
        after = find_contradictions(_environment_of_node(inventory, node, {**env, **texts}))
        judged.append([one for one in after if one not in before and not texts.keys().isdisjoint(one.names)])
    first, *others = judged
    return [one for one in first if all(one in other for other in others)]


def _environment_of_node(file: InventoryFile, node: Node, env: Mapping[str, EnvValue | None]) -> EnvironmentOfRanks:
    inventory = file.inventory
    hca = inventory.infiniband.hca if inventory.infiniband is not None else None
    texts = {name: value for name, value in env.items() if isinstance(value, str)}
    if hca and "NCCL_IB_HCA" not in env:
        texts["NCCL_IB_HCA"] = hca
    return EnvironmentOfRanks(
        env=texts,
        interface=texts.get("NCCL_SOCKET_IFNAME", inventory.network.interface),
        infiniband=inventory.infiniband is not None,
        gpus=node.gpus if file.sound("gpus") else None,
        slots=node.slots,
        windows=node.windows,
    )


def _contradiction_span(file: InventoryFile, node: Node, one: Contradiction) -> Span | None:
    """The place of the first of the contradiction's variables that this file sets for the node; None if it sets
    none."""
    for name in one.names:
        span = file.origins.span(node.name, "env", name)
        if span is not None:
            return span
    return None


def nccl_unused(file: InventoryFile) -> Iterator[Problem]:
    """Reports variables of NCCL in a job that runs on gloo, once, at the first of them."""
    if file.inventory.rendezvous.backend != "gloo" or not file.sound("backend", "gpus", "shell", "nodes", "groups"):
        return
    settings = [one for one in inventory_variables(file.document) if one.name.startswith(("NCCL_", "TORCH_NCCL_"))]
    if not settings:
        return
    others = len({one.name for one in settings}) - 1
    more = f" and {others} more variables are" if others > 1 else " and another variable are" if others else " is"
    if any(node.gpus for node in file.inventory.nodes):
        why = "the backend is gloo"
    else:
        why = "no node has `gpus`, so the backend is gloo"
    message = f"`{settings[0].name}`{more} NCCL's, which this job never starts: {why}"
    help = "give the nodes their `gpus`, or leave NCCL's variables out"
    yield Problem("env.nccl-unused", message, file.document.key_span(*settings[0].keys), help)


def shared_host_id(file: InventoryFile) -> Iterator[Problem]:
    """Reports two nodes with one NCCL_HOSTID, whose ranks NCCL takes for processes of one machine."""
    seen: dict[str, Node] = {}
    for node in file.inventory.nodes:
        value = node.env.get("NCCL_HOSTID", file.inventory.env.get("NCCL_HOSTID"))
        if not isinstance(value, str) or not value:
            continue
        first = seen.setdefault(value, node)
        if first is not node:
            message = f"`{first.name}` and `{node.name}` have the same NCCL_HOSTID: NCCL takes them for one machine"
            span = file.origins.span(node.name, "env", "NCCL_HOSTID")
            yield Problem("env.shared-host-id", message, span, "leave it out: NCCL tells machines apart by itself")
            return


# Interfaces and adapters against the rest of the inventory: `network.interface` feeds NCCL and gloo alike.

_HCA_KEY: KeyPath = ("infiniband", "hca")
_READERS = {"NCCL_SOCKET_IFNAME": "NCCL", "GLOO_SOCKET_IFNAME": "gloo"}
_ALL_NODES_BLOCKS: tuple[KeyPath, ...] = (("env",), ("defaults", "env"))


def network_of_inventory(file: InventoryFile) -> Iterator[Problem]:
    interface, infiniband = file.inventory.network.interface, file.inventory.infiniband
    if interface and NETWORK_INTERFACE_KEY not in file.wrong:
        for fault in _interface_faults(file.inventory, interface):
            yield problem_at(file.document, fault, NETWORK_INTERFACE_KEY)
    if infiniband is not None and infiniband.hca and _HCA_KEY not in file.wrong:
        for fault in adapter_faults("infiniband.hca", infiniband.hca):
            yield problem_at(file.document, fault, _HCA_KEY)
        yield from _hca_conflict(file, infiniband.hca)
    settings = [setting for setting in inventory_variables(file.document) if setting.name in _READERS and setting.text]
    yield from _interface_setting_problems(file.document, file.inventory, settings)


def network_of_playbook(file: PlaybookFile) -> Iterator[Problem]:
    if file.inventory is not None:
        settings = [
            setting for setting in playbook_variables(file.document) if setting.name in _READERS and setting.text
        ]
        yield from _interface_setting_problems(file.document, file.inventory.inventory, settings)


def _interface_faults(inventory: Inventory, interface: str) -> Iterator[VariableFault]:
    if all(node.env.get("GLOO_SOCKET_IFNAME", inventory.env.get("GLOO_SOCKET_IFNAME")) for node in inventory.nodes):
        yield from interface_faults("network.interface", interface)  # gloo never reads it
        return
    yield from list(gloo_faults("network.interface", interface))[:1] or [
        fault for fault in interface_faults("network.interface", interface) if fault.id != "prefix-trap"
    ]
    if _has_many_machines(inventory) and (name := virtual_interface(interface)):
        yield _virtual_interface_fault(name)


def _interface_setting_problems(
    document: Document, inventory: Inventory, settings: list[WrittenVariable]
) -> Iterator[Problem]:
    many = _has_many_machines(inventory)
    for setting in settings:
        text = setting.text or ""
        if many and (name := virtual_interface(text)):
            yield problem_at(document, _virtual_interface_fault(name), setting.keys)
        elif (setting.block in _ALL_NODES_BLOCKS or setting.block[0] == "stages") and inventory.network.interface:
            yield from _interface_conflict(document, setting, text, inventory.network.interface)
        elif setting.name == "GLOO_SOCKET_IFNAME":
            yield from _nccl_gloo_conflict(document, setting, text, settings)


def _interface_conflict(document: Document, setting: WrittenVariable, text: str, interface: str) -> Iterator[Problem]:
    """Reports a variable for all nodes that selects another interface than `network.interface`, which then does
    nothing."""
    chosen, names = parse_device_selection(text.strip()), interface.split(",")
    if not any(chosen.takes(name.strip()) for name in names) and not interface.startswith(("^", "=")):
        message = (
            f"`network.interface` says {shortened_quote(interface)}, and "
            f"{_READERS[setting.name]} would use {shortened_quote(text)}"
        )
        help = "write the one that is right in `network.interface`, or give single nodes or groups their own"
        yield problem_at(document, VariableFault("interface-conflict", message, help), setting.keys)


def _hca_conflict(file: InventoryFile, hca: str) -> Iterator[Problem]:
    for setting in variables_for_all_nodes(file.document):
        if setting.name != "NCCL_IB_HCA" or not setting.text:
            continue
        if parse_device_selection(setting.text.strip()) != parse_device_selection(hca.strip()):
            message = f"`infiniband:` says {shortened_quote(hca)}, and NCCL would use {shortened_quote(setting.text)}"
            help = "write the one that is right in `infiniband: {hca: …}`, or give single nodes or groups their own"
            yield problem_at(file.document, VariableFault("interface-conflict", message, help), setting.keys)


def _nccl_gloo_conflict(
    document: Document, setting: WrittenVariable, text: str, settings: list[WrittenVariable]
) -> Iterator[Problem]:
    """Reports different interfaces for NCCL and gloo in one block, unless one is IPoIB: NCCL over IPoIB and gloo over
    Ethernet is a choice, two Ethernet interfaces are a slip."""
    beside = next((one for one in settings if one.block == setting.block and one.name == "NCCL_SOCKET_IFNAME"), None)
    if beside is None or beside.text is None:
        return
    nccl, gloo = parse_device_selection(beside.text.strip()), text.strip()
    if (
        nccl.excludes
        or nccl.takes(gloo.split(",")[0].strip())
        or any(one.startswith("ib") for one in (*nccl.names, gloo))
    ):
        return
    message = f"NCCL would use {shortened_quote(beside.text)} and gloo {shortened_quote(text)} on the same node"
    yield problem_at(
        document, VariableFault("interface-conflict", message, "write one `network.interface` for both"), setting.keys
    )


def _virtual_interface_fault(name: str) -> VariableFault:
    message = f"{shortened_quote(name)} leads to no other machine, and this job has several"
    return VariableFault(
        "virtual-interface",
        message,
        "name the interface that carries the route to the other nodes: `ip route get ADDRESS`",
    )


def _has_many_machines(inventory: Inventory) -> bool:
    return len(inventory.nodes) > 1 and not inventory.one_machine


INVENTORY_RULES = (network_of_inventory, contradictions_in_inventory, nccl_unused, shared_host_id)

PLAYBOOK_RULES = (network_of_playbook, contradictions_in_playbook)
