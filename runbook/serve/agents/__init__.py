"""Nodes that dial the server: which are heard, and byte streams to them."""

from runbook.serve.agents.door import Door
from runbook.serve.agents.fleet import Fleet, enrol
from runbook.serve.agents.pages import PAGES
from runbook.serve.agents.states import AgentState

__all__ = ["PAGES", "AgentState", "Door", "Fleet", "enrol"]
