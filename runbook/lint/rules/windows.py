"""Windows: what its nodes can be called, and with whom they can work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.written import named, node_span, places, said, trusted, wrote
from runbook.lint.subject import InventoryFile
from runbook.load.address import is_ip, is_loopback
from runbook.model.errors import Problem

_LINUX_CARD = re.compile(r"(eth|ib|bond|wlan)[0-9]+|en[ospx][0-9a-z]+|lo")


def windows_name_dialled(file: InventoryFile) -> Iterator[Problem]:
    """What ended in error 10049 for many: one machine that looks itself up by name."""
    inventory = file.inventory
    if len(inventory.nodes) > 1 or not wrote(file, "rendezvous", "address") or not trusted(file, "shell"):
        return
    address = inventory.rendezvous.address
    if inventory.nodes[0].windows and not is_ip(address) and not is_loopback(address):
        message = f"one Windows machine that dials itself as {address} may get error 10049 or another machine"
        help = "remove `address`: a job of one node dials 127.0.0.1, whatever stands here"
        yield Problem("inventory.windows-name-dialled", message, file.document.span("rendezvous", "address"), help)


def windows_host_name(file: InventoryFile) -> Iterator[Problem]:
    inventory = file.inventory
    if len(inventory.nodes) == 1:
        return
    windows = [node for node in trusted(file, "shell", "address") if node.windows]
    names = [node for node in windows if not is_ip(node.address) and not is_loopback(node.address)]
    help = "give the IP address: Windows may look a name up by broadcast, and find another adapter's or an IPv6 address"
    for span, nodes in places(file, names, "address"):
        message = f"the Windows node {named(nodes)} goes by a host name, {nodes[0].address}"
        if len(nodes) > 1:
            message = f"the Windows nodes {named(nodes)} go by host names"
        yield Problem("inventory.windows-host-name", message, span, help)
    address = inventory.rendezvous.address
    if windows and wrote(file, "rendezvous", "address") and not is_ip(address) and not is_loopback(address):
        message = f"Windows nodes dial the master by a host name, {address}"
        yield Problem("inventory.windows-host-name", message, file.document.span("rendezvous", "address"), help)


def two_systems(file: InventoryFile) -> Iterator[Problem]:
    """The fewer ones are told: they are more likely to be the slip."""
    nodes = trusted(file, "shell")
    windows = [node for node in nodes if node.windows]
    others = [node for node in nodes if not node.windows]
    if not windows or not others:
        return
    odd = windows if len(windows) <= len(others) else others
    span = file.origins.span(odd[0].name, "shell") or node_span(file, odd[0])
    message = (
        f"{named(windows)} (Windows) and {named(others)} (not Windows) cannot be one job: no backend connects them"
    )
    help = "make two inventories; or correct `shell`: sh is for Linux, bat and ps1 are for Windows"
    yield Problem("inventory.two-systems", message, span, help)


def windows_interface(file: InventoryFile) -> Iterator[Problem]:
    name = file.inventory.network.interface
    if name is None or not wrote(file, "network", "interface") or not said(file, "network", "interface"):
        return
    nodes = trusted(file, "shell")
    if nodes and all(node.windows for node in nodes) and _LINUX_CARD.fullmatch(name):
        message = f"`{name}` is a name that Linux gives, and the nodes are Windows"
        help = "remove it, or give the adapter's name as `Get-NetAdapter` shows it"
        yield Problem("inventory.windows-interface", message, file.document.span("network", "interface"), help)


def windows_python3(file: InventoryFile) -> Iterator[Problem]:
    given = [
        node for node in trusted(file, "shell", "python") if node.windows and node.python in ("python3", "python3.exe")
    ]
    for span, nodes in places(file, given, "python"):
        message = f"on Windows ({named(nodes)}) `python3` is often no Python, but what opens the Microsoft Store"
        yield Problem("inventory.windows-python3", message, span, "write python, py, or the path of python.exe")
