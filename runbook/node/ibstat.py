"""InfiniBand ports as `ibstat` prints them and as the kernel shows them in sysfs. Says one message."""

import glob
import os

from tool import read, say, tool

SYSFS = "/sys/class/infiniband"
PCI = "/sys/bus/pci/devices"
MELLANOX = "0x15b3"
GIDS = 32
"""A port's table has room for hundreds; the first addresses of its interface stand in front."""


def sysfs():
    """{hca: {port: {state, phys_state, rate, link_layer, sm_lid}}}, or None where the kernel shows no such class."""
    try:
        hcas = sorted(os.listdir(SYSFS))
    except OSError:
        return None
    found = {}
    for hca in hcas:
        base = "%s/%s/ports" % (SYSFS, hca)
        try:
            ports = sorted(os.listdir(base))
        except OSError:
            ports = []
        names = ("state", "phys_state", "rate", "link_layer", "sm_lid")
        found[hca] = {port: {name: read("%s/%s/%s" % (base, port, name)) for name in names} for port in ports}
    return found


def gids():
    """{"mlx5_0:1": {index: {gid, type, ndev}}} of the GIDs that are set; without a port whose table is not readable."""
    found = {}
    for base in glob.glob(SYSFS + "/*/ports/*"):
        hca, _, port = base[len(SYSFS) + 1 :].split("/")
        table = {}
        for index in range(GIDS):
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


def cards():
    """How many Mellanox cards are on the PCI bus; None where there is no such bus to look at."""
    vendors = [read(path) for path in glob.glob(PCI + "/*/vendor")]
    return sum(vendor == MELLANOX for vendor in vendors) if vendors else None


def look(_arguments):
    return {"ibstat": tool("ibstat", [], 8), "sysfs": sysfs(), "gids": gids(), "cards": cards()}


if __name__ == "__main__":
    say(look({}))
