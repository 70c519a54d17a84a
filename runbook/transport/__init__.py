"""How to reach a node: a byte stream (local or SSH) with a supervisor at the far end, and what is done through it."""

from runbook.transport.session import Answer, Remote, Session
from runbook.transport.site import Site

__all__ = ["Answer", "Remote", "Session", "Site"]
