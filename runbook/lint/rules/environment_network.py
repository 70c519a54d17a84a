"""Interfaces and adapters against the rest of the inventory: `network.interface` feeds NCCL and gloo alike."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.lint.rules.environment import problem_at
from runbook.lint.rules.environment_fault import VariableFault
from runbook.lint.rules.environment_numbers import shown
from runbook.lint.rules.environment_selections import adapter_faults, gloo_faults, interface_faults, virtual
from runbook.lint.rules.environment_written import WrittenVariable, for_all_nodes, of_inventory, of_playbook
from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.load.document import Document, Keys
from runbook.model.errors import Problem
from runbook.model.inventory import Inventory
from runbook.model.selection import selection

_INTERFACE: Keys = ("network", "interface")
_HCA: Keys = ("infiniband", "hca")
_READERS = {"NCCL_SOCKET_IFNAME": "NCCL", "GLOO_SOCKET_IFNAME": "gloo"}
_FOR_ALL: tuple[Keys, ...] = (("env",), ("defaults", "env"))


def network_of_inventory(file: InventoryFile) -> Iterator[Problem]:
    interface, infiniband = file.inventory.network.interface, file.inventory.infiniband
    if interface and _INTERFACE not in file.wrong:
        for fault in _interface_faults(file.inventory, interface):
            yield problem_at(file.document, fault, _INTERFACE)
    if infiniband is not None and infiniband.hca and _HCA not in file.wrong:
        for fault in adapter_faults("infiniband.hca", infiniband.hca):
            yield problem_at(file.document, fault, _HCA)
        yield from _against_hca(file, infiniband.hca)
    settings = [setting for setting in of_inventory(file.document) if setting.name in _READERS and setting.text]
    yield from _of_settings(file.document, file.inventory, settings)


def network_of_playbook(file: PlaybookFile) -> Iterator[Problem]:
    if file.inventory is not None:
        settings = [setting for setting in of_playbook(file.document) if setting.name in _READERS and setting.text]
        yield from _of_settings(file.document, file.inventory.inventory, settings)


def _interface_faults(inventory: Inventory, interface: str) -> Iterator[VariableFault]:
    if all(node.env.get("GLOO_SOCKET_IFNAME", inventory.env.get("GLOO_SOCKET_IFNAME")) for node in inventory.nodes):
        yield from interface_faults("network.interface", interface)  # gloo never sees it
        return
    yield from list(gloo_faults("network.interface", interface))[:1] or [
        fault for fault in interface_faults("network.interface", interface) if fault.id != "prefix-trap"
    ]
    if _many_machines(inventory) and (name := virtual(interface)):
        yield _of_virtual(name)


def _of_settings(document: Document, inventory: Inventory, settings: list[WrittenVariable]) -> Iterator[Problem]:
    many = _many_machines(inventory)
    for setting in settings:
        text = setting.text or ""
        if many and (name := virtual(text)):
            yield problem_at(document, _of_virtual(name), setting.keys)
        elif (setting.block in _FOR_ALL or setting.block[0] == "stages") and inventory.network.interface:
            yield from _against(document, setting, text, inventory.network.interface)
        elif setting.name == "GLOO_SOCKET_IFNAME":
            yield from _two(document, setting, text, settings)


def _against(document: Document, setting: WrittenVariable, text: str, interface: str) -> Iterator[Problem]:
    """One for all nodes, so that `network.interface` says something that never happens."""
    if not selection(text.strip()).takes(interface) and not interface.startswith(("^", "=")):
        message = f"`network.interface` says {shown(interface)}, and {_READERS[setting.name]} would use {shown(text)}"
        help = "write the one that is right in `network.interface`, or give single nodes or groups their own"
        yield problem_at(document, VariableFault("interface-conflict", message, help), setting.keys)


def _against_hca(file: InventoryFile, hca: str) -> Iterator[Problem]:
    for setting in for_all_nodes(file.document):
        if setting.name != "NCCL_IB_HCA" or not setting.text:
            continue
        if selection(setting.text.strip()) != selection(hca.strip()):
            message = f"`infiniband:` says {shown(hca)}, and NCCL would use {shown(setting.text)}"
            help = "write the one that is right in `infiniband: {hca: …}`, or give single nodes or groups their own"
            yield problem_at(file.document, VariableFault("interface-conflict", message, help), setting.keys)


def _two(document: Document, setting: WrittenVariable, text: str, settings: list[WrittenVariable]) -> Iterator[Problem]:
    """NCCL over IPoIB and gloo over Ethernet is a choice; two Ethernet interfaces side by side are a slip."""
    beside = next((one for one in settings if one.block == setting.block and one.name == "NCCL_SOCKET_IFNAME"), None)
    if beside is None or beside.text is None:
        return
    nccl, gloo = selection(beside.text.strip()), text.strip()
    if (
        nccl.excludes
        or nccl.takes(gloo.split(",")[0].strip())
        or any(one.startswith("ib") for one in (*nccl.names, gloo))
    ):
        return
    message = f"NCCL would use {shown(beside.text)} and gloo {shown(text)} on the same node"
    yield problem_at(
        document, VariableFault("interface-conflict", message, "write one `network.interface` for both"), setting.keys
    )


def _of_virtual(name: str) -> VariableFault:
    message = f"{shown(name)} leads to no other machine, and this job has several"
    return VariableFault(
        "virtual-interface",
        message,
        "name the interface that carries the route to the other nodes: `ip route get ADDRESS`",
    )


def _many_machines(inventory: Inventory) -> bool:
    return len(inventory.nodes) > 1 and not inventory.one_machine
