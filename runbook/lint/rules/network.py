"""The network's interface, and whether InfiniBand is used at all and promised a rate that there is."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.lint.rules.written import said, trusted, wrote
from runbook.lint.subject import InventoryFile
from runbook.load.address import is_ip
from runbook.model.errors import Problem

_INTERFACE = ("network", "interface")
_RATE = ("infiniband", "min_rate_gbps")

_LONGEST_NAME = 15  # IFNAMSIZ, less the NUL
_RATES = (
    *(2.5, 5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80),
    *(100, 112, 120, 168, 200, 300, 400, 600, 800, 1200, 1600),
)  # Gbit/s that a port of InfiniBand or RoCE can have, lanes times lane rate


def interface_name(file: InventoryFile) -> Iterator[Problem]:
    """Only Linux has a limit; adapters of Windows are called what their owner likes."""
    if not wrote(file, *_INTERFACE) or any(node.windows for node in trusted(file, "shell")):
        return
    for name in (file.inventory.network.interface or "").lstrip("^=").split(","):
        if len(name.partition(":")[0]) > _LONGEST_NAME and not is_ip(name.partition("/")[0]):
            message = f"no interface is called `{name}`: names have up to {_LONGEST_NAME} characters"
            help = "`ip -br link` lists them, one a line"
            yield Problem("inventory.interface-name", message, file.document.span(*_INTERFACE), help)
            return


def infiniband_unused(file: InventoryFile) -> Iterator[Problem]:
    """Only told where the backend is sure to be gloo: written, or because of Windows."""
    inventory = file.inventory
    if inventory.infiniband is None or inventory.rendezvous.backend != "gloo":
        return
    if wrote(file, "rendezvous", "backend"):
        why = "`backend: gloo`"
    elif said(file, "rendezvous", "backend") and any(node.windows for node in trusted(file, "shell")):
        why = "gloo, the backend of Windows nodes,"
    else:
        return
    message = f"{why} does not use InfiniBand: the job's data goes over TCP"
    help = "write `backend: nccl`; or remove the block, if the fabric need not be looked at either"
    yield Problem("inventory.infiniband-unused", message, file.document.key_span("infiniband"), help)


def infiniband_rate(file: InventoryFile) -> Iterator[Problem]:
    infiniband = file.inventory.infiniband
    if infiniband is None or not wrote(file, *_RATE) or infiniband.min_rate_gbps is None:
        return
    rate = infiniband.min_rate_gbps
    if rate not in _RATES:
        near = min(_RATES, key=lambda real: abs(real - rate))
        message = f"no port runs at {rate:.10g} Gbit/s"
        help = f"the nearest rate there is: {near:g}. `ibstat` shows it as Rate, in Gbit/s"
        yield Problem("inventory.infiniband-rate", message, file.document.span(*_RATE), help)
