"""InfiniBand ports as `ibstat` prints them, or from sysfs where the tool is missing. Says one message."""

import os

from tool import read, say, tool

SYSFS = "/sys/class/infiniband"


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


def look(_arguments):
    return {"ibstat": tool("ibstat", [], 8), "sysfs": sysfs()}


if __name__ == "__main__":
    say(look({}))
