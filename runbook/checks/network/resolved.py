"""What an address of the inventory is as a number, in the eyes of the nodes."""

from __future__ import annotations

import ipaddress
import socket

from runbook.checks.context import Context


def number(at: Context, name: str) -> str:
    """The address at which a node is dialled, as a number. Where it is a name, the nodes know better than this machine what
    it means: of several addresses it is one of the node's own."""
    written = at.data_address(at.inventory.node(name))
    found, own = numeric(written), at.own_addresses(name)
    if found == written or found in own or not own:
        return found
    return next((address for address in own if ":" not in address), own[0])


def numeric(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        try:
            return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            return "0.0.0.0"
