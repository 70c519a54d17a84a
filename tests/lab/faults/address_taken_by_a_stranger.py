"""A machine outside the cluster keeps announcing a node's address as its own, and the others believe it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

ANNOUNCE = """\
import socket, sys, time
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
    sock.bind(("eth1", 0))
    mac, ip = sock.getsockname()[4], socket.inet_aton(sys.argv[1])
    while True:
        sock.send(b"\\xff" * 6 + mac + bytes.fromhex("08060001080006040001") + mac + ip + b"\\0" * 6 + ip)
        time.sleep(0.02)
"""


def breaks(lab: Lab) -> None:
    lab.data_network()
    address, other = lab["node-a"].data_addresses[0], lab["node-c"]
    other.ip("addr flush dev eth1", f"addr add {address}/24 dev eth1")
    other.popen([lab.python_without_torch, "-c", ANNOUNCE, address], "root")


FAULT = Fault(
    hosts=3,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network("node-a", "node-b"),
    stage="ping",
    cause="duplicate-address",
    nodes="node-a",
    says=(r"10\.44\.0\.1", r"([0-9a-f]{2}:){5}[0-9a-f]{2}"),
    within_s=8,
)
