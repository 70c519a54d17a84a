"""How to reach a node: a byte stream with a supervisor at the far end, and the sessions over it.

The stream is a process here, or goes over SSH, Slurm, Kubernetes or an agent, and from there into a container.
"""

from runbook.transport.bootstrap import NoPython
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import Answer, Message, ProgramNotStarted, Remote
from runbook.transport.session import SILENCE_S, Session

__all__ = [
    "SILENCE_S",
    "Answer",
    "Message",
    "NoPython",
    "ProgramNotStarted",
    "Remote",
    "Session",
    "Site",
    "UnexpectedAnswer",
]
