"""The state of an agent, and why there is no stream to its node: pure functions of what the agent sent, what people
decided, and how long it was silent. No state affects what runs on a node: an agent's silence never ends a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import msgspec

import runbook
from runbook.agent.protocol import (
    AGENT_LOST_TIMEOUT_S,
    AGENT_SUSPECT_TIMEOUT_S,
    MAX_REPORTED_RANKS,
    PROTOCOL_VERSION,
    GpuLoad,
    JobProcess,
)
from runbook.model.command_quoting import shell_word
from runbook.transport.agent import StreamStatus

OLD_AGENT_REMEDY = (
    f"on the node, install runbook {runbook.__version__} from where the server has it, and start the agent again"
)
"""The remedy for an agent that is too old. It has no command: in public indexes the name `runbook` is another
project's."""

AgentStateName = Literal["ONLINE", "SUSPECT", "LOST", "DRAINING", "REVOKED", "TOO_OLD"]


class RankState(msgspec.Struct, frozen=True, gc=False):
    """A rank of a job, as its node's agent last reported it. `pid` is the process kept for it, which may be a launcher
    of several ranks. `state` is waiting, running, stopping, ended (well), failed, or gone: no longer there, without a
    recorded end. `step_age_s` is the age of the step that it wrote last."""

    job: str
    attempt: int
    rank: int
    pid: int | None
    state: str
    code: int | None
    step: str | None
    step_age_s: float | None


@dataclass(frozen=True, slots=True)
class AgentState:
    """A node as its agent last reported it. `since` is when it entered this state, in seconds since 1970. `beat_age_s`
    is the time since its agent was last heard, None if not since the server began. `load` is that of the last minute;
    `address` is where the agent dialled from. `drained_here`: people drained the node on this server, not on the node
    itself."""

    name: str
    state: AgentStateName
    since: float
    beat_age_s: float | None
    version: str
    hostname: str
    address: str
    gpus: tuple[GpuLoad, ...]
    load: float | None
    jobs: tuple[RankState, ...]
    incarnation: str
    connected: bool
    drained_here: bool


def reported_rank_states(jobs: Iterable[JobProcess]) -> tuple[RankState, ...]:
    """The ranks of these kept processes, one by one; only the first MAX_REPORTED_RANKS, since agents may send what they
    like and a message has room for a hundred thousand."""
    every = ((job, rank) for job in jobs for rank in job.ranks)
    return tuple(
        RankState(
            job=job.job, attempt=job.attempt, rank=rank, pid=job.pid,
            state="failed" if job.state == "ended" and job.code != 0 else job.state, code=job.code,
            step=job.step, step_age_s=job.step_age_s,
        )
        for job, rank in islice(every, MAX_REPORTED_RANKS)
    )  # fmt: skip


def agent_state_name(
    silent_s: float, *, revoked: bool = False, too_old: bool = False, draining: bool = False
) -> AgentStateName:
    """The state of an agent. `silent_s` is how long it sent nothing while the server was able to receive."""
    if revoked:
        return "REVOKED"
    if silent_s >= AGENT_LOST_TIMEOUT_S:
        return "LOST"
    if too_old:
        return "TOO_OLD"
    if silent_s >= AGENT_SUSPECT_TIMEOUT_S:
        return "SUSPECT"
    return "DRAINING" if draining else "ONLINE"


def is_supported_protocol(protocol: int) -> bool:
    """Whether this server talks to agents of this protocol: its own version, and the one before."""
    return PROTOCOL_VERSION - 1 <= protocol <= PROTOCOL_VERSION


class AwakeClock:
    """A clock that counts only the time in which this server was able to receive: it stands still while the machine
    sleeps or the process does not run. Its owner has to call `tick` at least every `every_s` seconds."""

    def __init__(self, now: float, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._last = now
        self.seconds = 0.0

    def tick(self, now: float) -> float:
        """The time on this clock; `now` is monotonic."""
        self.seconds += max(0.0, min(now - self._last, 2 * self._every_s))
        self._last = now
        return self.seconds


AGENT_LOST = "agent-lost"


def never_enrolled_status(name: str) -> StreamStatus:
    fix = (
        "`runbook serve enrol` here prints a string; on the node: `runbook agent enrol "
        f"STRING --name {shell_word(name)}`"
    )
    return StreamStatus(AGENT_LOST, f"no agent was ever enrolled here as {name}", fix)


def drained_status(name: str) -> StreamStatus:
    fix = f"let it take runs again on its page, or on {name} with `runbook agent drain --undo`; or leave it out with -l"
    return StreamStatus(AGENT_LOST, f"{name} is drained: no new run begins there", fix)


def stream_not_opened_status(name: str, why: str) -> StreamStatus:
    fix = "`runbook agent status`, and what it printed"
    return StreamStatus(AGENT_LOST, f"the agent of {name} opened no stream: {why}", fix, node=name)


def not_connected_status(name: str, silent_s: float) -> StreamStatus:
    fix = "`runbook agent status`; it dials again within 30 s where it can"
    says = f"the agent of {name} is not connected, since {silent_s:.0f} s at the most"
    return StreamStatus(AGENT_LOST, says, fix, node=name)


def no_stream_status(name: str, state: AgentStateName, silent_s: float, version: str) -> StreamStatus:
    """The reason for a node that is neither online nor drained."""
    if state == "REVOKED":
        fix = f"enrol it again: `runbook serve enrol`, and on {name} `runbook agent enrol STRING --again`"
        return StreamStatus(AGENT_LOST, f"the agent of {name} was revoked here", fix)
    if state == "TOO_OLD":
        says = f"the agent of {name} is runbook {version}, too old for this server ({runbook.__version__})"
        return StreamStatus(AGENT_LOST, says, OLD_AGENT_REMEDY, node=name)
    fix = (
        f"see that {name} is up, that its agent runs (`runbook agent status` there) and that the network to this "
        "machine holds; what runs there goes on"
    )
    return StreamStatus(AGENT_LOST, f"nothing has come from the agent of {name} for {silent_s:.0f} s ({state})", fix)
