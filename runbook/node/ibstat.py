"""InfiniBand ports as `ibstat` prints them and as the kernel shows them in sysfs. Says one message."""

from __future__ import annotations

import glob
import os

from runbook.node.proc import read
from runbook.node.tools import run_if_installed, sendable_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import Gid, IbPort, IbstatAnswer

SYS_CLASS_INFINIBAND = "/sys/class/infiniband"
PCI_DEVICES_FOLDER = "/sys/bus/pci/devices"
MELLANOX_VENDOR_ID = "0x15b3"
MAX_GIDS = 32
"""How many entries of a port's GID table are read: it has room for hundreds; the interface's addresses come first."""


def sysfs_ib_ports() -> dict[str, dict[str, IbPort]] | None:
    """{hca: {port: {state, phys_state, rate, link_layer}}}, or None if the kernel shows no InfiniBand."""
    try:
        hcas = sorted(os.listdir(SYS_CLASS_INFINIBAND))
    except OSError:
        return None
    found: dict[str, dict[str, IbPort]] = {}
    for hca in hcas:
        base = "%s/%s/ports" % (SYS_CLASS_INFINIBAND, hca)
        try:
            ports = sorted(os.listdir(base))
        except OSError:
            ports = []
        found[hca] = {port: read_port_files("%s/%s/" % (base, port)) for port in ports}
    return found


def read_port_files(base: str) -> IbPort:
    return {
        "state": read(base + "state"),
        "phys_state": read(base + "phys_state"),
        "rate": read(base + "rate"),
        "link_layer": read(base + "link_layer"),
    }


def port_gids() -> dict[str, dict[str, Gid]]:
    """{"mlx5_0:1": {index: {gid, type, ndev}}} of the GIDs that are set; ports with an unreadable table are left
    out."""
    found = {}
    for base in glob.glob(SYS_CLASS_INFINIBAND + "/*/ports/*"):
        hca, _, port = base[len(SYS_CLASS_INFINIBAND) + 1 :].split("/")
        table: dict[str, Gid] = {}
        for index in range(MAX_GIDS):
            gid = read("%s/gids/%d" % (base, index))
            if gid and gid.strip("0:"):
                table[str(index)] = {
                    "gid": gid,
                    "type": read("%s/gid_attrs/types/%d" % (base, index)),
                    "ndev": read("%s/gid_attrs/ndevs/%d" % (base, index)),
                }
        if read("%s/gids/0" % base) is not None:
            found["%s:%s" % (hca, port)] = table
    return found


def count_mellanox_cards() -> int | None:
    """How many Mellanox cards are on the PCI bus; None if there is no such bus to look at."""
    vendors = [read(path) for path in glob.glob(PCI_DEVICES_FOLDER + "/*/vendor")]
    return sum(vendor == MELLANOX_VENDOR_ID for vendor in vendors) if vendors else None


def look(_arguments: dict[str, Any]) -> IbstatAnswer:
    return {
        "ibstat": sendable_result(run_if_installed("ibstat", [], 8)),
        "sysfs": sysfs_ib_ports(),
        "gids": port_gids(),
        "cards": count_mellanox_cards(),
    }
