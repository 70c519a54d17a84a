"""Why a port is blocked: which rule, on which node, and the exact command that allows it. Pure: nothing is run here.

`runbook/node/firewall_rules.py` collects a node's rules; `Evidence` (collected_rules) reads its answer; `explain`
(explain_node) judges one direction of one `Flow` on one node as the kernel would; `explain_blocked`
(explain_connection) explains a failed connection from both its ends."""
