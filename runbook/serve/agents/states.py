"""In which state an agent is: a pure function of what it said, what people decided, and for how long nothing was heard.

No state does anything to what runs on a node: a job is ended by whoever runs it, never by silence of its agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runbook.agent.protocol import LOST_S, PROTOCOL, SUSPECT_S, GpuLoad, JobProcess

State = Literal["ONLINE", "SUSPECT", "LOST", "DRAINING", "REVOKED", "TOO_OLD"]


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of a job, as its node's agent told it last. `pid` is that of the process kept for it, which may be a launcher of
    several. `state`: waiting, running, stopping, ended (well), failed, or gone, which is known only by its absence.
    `step_age_s`: since it wrote its last step."""

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
    """One node as its agent told it last. `since`: of this state, in seconds since 1970. `beat_age_s` is None where nothing
    was heard since the server began. `load`: of the last minute. `address`: where its agent dialled from."""

    name: str
    state: State
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


def ranks_of(jobs: Iterable[JobProcess]) -> tuple[RankState, ...]:
    """The ranks of kept processes, one by one."""
    found = []
    for job in jobs:
        state = "failed" if job.state == "ended" and job.code != 0 else job.state
        for rank in job.ranks:
            found.append(RankState(job.job, job.attempt, rank, job.pid, state, job.code, job.step, job.step_age_s))
    return tuple(found)


def state_of(silent_s: float, *, revoked: bool = False, too_old: bool = False, draining: bool = False) -> State:
    """`silent_s`: for so long nothing was heard of the agent while the server could have heard."""
    if revoked:
        return "REVOKED"
    if silent_s >= LOST_S:
        return "LOST"
    if too_old:
        return "TOO_OLD"
    if silent_s >= SUSPECT_S:
        return "SUSPECT"
    return "DRAINING" if draining else "ONLINE"


def spoken(protocol: int) -> bool:
    """Whether this server talks to agents of a protocol: its own, and the one before."""
    return PROTOCOL - 1 <= protocol <= PROTOCOL


class AwakeClock:
    """A clock of the time in which this server could have heard somebody: it stands still while the machine sleeps, or the
    process does not run. Whoever owns it ticks at least every `every_s` seconds."""

    def __init__(self, now: float, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._last = now
        self.seconds = 0.0

    def tick(self, now: float) -> float:
        """The time on this clock; `now` is monotonic."""
        self.seconds += max(0.0, min(now - self._last, 2 * self._every_s))
        self._last = now
        return self.seconds
