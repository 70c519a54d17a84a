"""A NAT rule of the master leads the rendezvous port to another service, which answers."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, listener

RULES = """
table ip nat {
 chain prerouting {
  type nat hook prerouting priority dstnat; policy accept;
  tcp dport 29500 redirect to :8080
 }
}
"""


def redirect(lab: Lab) -> None:
    listener(lab["node-a"], 8080, user="root", says=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    lab["node-a"].firewall(RULES)


FAULT = Fault(
    breaks=redirect,
    stage="firewall",
    cause="firewall-reject",
    nodes="node-a",
    says=(r"elsewhere: nft rule ip nat prerouting", r"redirect to :8080"),
    mends=True,
    within_s=9,
)
