"""Which addresses the kernel takes for this machine's own, by its tables. Python 3.8, standard library."""

from __future__ import annotations

import ipaddress

from runbook.node.proc import read


def binds_anything(ipv6: bool) -> bool:
    """Whether an address can be bound that no interface has, as machines for virtual addresses are set."""
    return read("/proc/sys/net/%s/ip_nonlocal_bind" % ("ipv6" if ipv6 else "ipv4")) == "1"


def is_local(address: str) -> bool:
    """Whether packets for this address are for this machine."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if wanted.version == 6:
        lines = (read("/proc/net/if_inet6") or "").splitlines()
        return any(line.split()[0] == wanted.packed.hex() for line in lines if line)
    network = ""
    for line in (read("/proc/net/fib_trie") or "").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            network = words[1]
        elif words[1:] == ["host", "LOCAL"] and wanted in ipaddress.ip_network(network + words[0], strict=False):
            return True
    return False


def proves_nothing(address: str, ipv6: bool) -> bool:
    """Whether that it can be bound tells nothing of an address."""
    return binds_anything(ipv6) and not is_local(address)
