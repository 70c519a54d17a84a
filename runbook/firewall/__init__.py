"""Why a port is blocked: which rule, on which node, and the exact command that allows it. Pure: nothing is run here.

`runbook/node/firewall_rules.py` collects a node's rules; `Evidence` reads what it printed; `explain` judges one
direction of one `Flow` on one node as the kernel would; `explain_blocked` explains a failed connection from both its
ends."""

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import Flow
from runbook.firewall.explain_connection import Blocked, Ends, also_small, explain_blocked, sent_elsewhere, sure
from runbook.firewall.explain_node import ArpStop, Explanation, arp_stop, explain

__all__ = [
    "ArpStop",
    "Blocked",
    "Ends",
    "Evidence",
    "Explanation",
    "Flow",
    "also_small",
    "arp_stop",
    "explain",
    "explain_blocked",
    "sent_elsewhere",
    "sure",
]
