"""No fault: one node answers no ping, and TCP passes."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "ip protocol icmp drop"),
    cause=None,
    says=(r"node-b does not answer ICMP",),
    within_s=8,
)
