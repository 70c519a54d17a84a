"""One node's Python takes four seconds longer to start: nothing is wrong."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import at_start

FAULT = Fault(breaks=lambda lab: at_start(lab["node-b"], "time.sleep(4)"), cause=None, within_s=13)
