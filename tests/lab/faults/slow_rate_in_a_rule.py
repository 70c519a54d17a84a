"""No fault by itself, and warned of: a rule lets in 200 kB/s and drops the rest. Every sum is right, only late, and no gate
was given."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "tcp dport != 22 limit rate over 200 kbytes/second drop"),
    cause=None,
    says=(r"TCP segments that node-a sent had to be sent again", r"limits a rate"),
    within_s=25,
)
