"""Why there is no stream to a node, in the words of a run: cause `agent-lost`, whatever became of the agent."""

from __future__ import annotations

import runbook
from runbook.model.commands import word
from runbook.serve.agents.states import State
from runbook.transport.agent import StreamStatus

CAUSE = "agent-lost"


def unknown(name: str) -> StreamStatus:
    fix = f"`runbook serve enrol` here prints a string; on the node: `runbook agent enrol STRING --name {word(name)}`"
    return StreamStatus(CAUSE, f"no agent was ever enrolled here as {name}", fix)


def drained(name: str) -> StreamStatus:
    fix = f"let it take runs again on its page, or on {name} with `runbook agent drain --undo`; or leave it out with -l"
    return StreamStatus(CAUSE, f"{name} is drained: no new run begins there", fix)


def not_opened(name: str, why: str) -> StreamStatus:
    return StreamStatus(
        CAUSE, f"the agent of {name} opened no stream: {why}", f"on {name}: `runbook agent status`, and what it printed"
    )


def not_connected(name: str, silent_s: float) -> StreamStatus:
    fix = f"on {name}: `runbook agent status`; it dials again within 30 s where it can"
    return StreamStatus(CAUSE, f"the agent of {name} is not connected, since {silent_s:.0f} s at the most", fix)


def state_told(name: str, state: State, silent_s: float, version: str) -> StreamStatus:
    """Of a node that is neither online nor drained."""
    if state == "REVOKED":
        fix = f"enrol it again: `runbook serve enrol`, and on {name} `runbook agent enrol STRING --again`"
        return StreamStatus(CAUSE, f"the agent of {name} was revoked here", fix)
    if state == "TOO_OLD":
        fix = f"on {name}: `python -m pip install 'runbook[agent]=={runbook.__version__}'`, and start the agent again"
        return StreamStatus(
            CAUSE, f"the agent of {name} is runbook {version}, too old for this server ({runbook.__version__})", fix
        )
    fix = (
        f"see that {name} is up, that its agent runs (`runbook agent status` there) and that the network to this machine holds; "
        "what runs there goes on"
    )
    return StreamStatus(CAUSE, f"nothing has been heard of the agent of {name} for {silent_s:.0f} s ({state})", fix)
