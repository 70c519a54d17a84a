"""Nodes that dial the server: which are heard, and byte streams to them."""

from runbook.serve.agents.fleet import Fleet, enrol
from runbook.serve.agents.pages import PAGES
from runbook.serve.agents.states import AgentState
from runbook.serve.agents.stream_socket import StreamSocket

__all__ = ["PAGES", "AgentState", "Fleet", "StreamSocket", "enrol"]
