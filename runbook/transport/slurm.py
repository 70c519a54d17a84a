"""Slurm nodes: a step of the job on each, whose stdin and stdout `srun` carries.

Facts this stands on, measured on Slurm 22.05: without `--unbuffered` what does not end in a newline is held back for
seconds; with it, stdout is a pty that changes no byte. When stdin ends, the supervisor sees it at once and cleans up; when
srun is killed, the supervisor is killed half a second later and cannot. So nobody signals srun while a supervisor may live.
What srun and a job's environment say about tasks (SLURM_NTASKS=1, SLURM_PROCID=0) is true of the supervisor and of no rank:
a trainer that reads it would believe that it is alone.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from runbook.model.commands import word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.bootstrap import command
from runbook.transport.process import ProcessStream
from runbook.transport.slurm_told import (
    SlurmJob,
    SlurmNode,
    ended,
    job_in,
    no_controller,
    nodes_in,
    refusal,
    said,
    silent,
    unhealthy,
)

T = TypeVar("T")

ASKED_S = 3.0
"""Of a question to slurmctld. One thread sends everybody's beats, and may have to ask."""

FRESH_S = 2.0
"""So old may an answer be: when a job ends, all of its nodes ask at once."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""Which cluster is meant. All else that Slurm's programs read from the environment would change what we ask them for."""

STEP = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",  # beside the job's own steps, which it takes nothing from
    "--mem=0",
    # And no --gres=none: where Slurm guards the devices (ConstrainDevices), ranks of such a step could not open a GPU.
    "--cpu-bind=none",  # ranks are our children, and want every core of the job
    "--kill-on-bad-exit=0",
    "--mpi=none",
    "--export=ALL",
    "--chdir=/",
    "--unbuffered",
)
OF_THE_TASK = (
    "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_GTIDS SLURM_TASK_PID SLURM_TASKS_PER_NODE "
    "SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NODELIST SLURM_NNODES"
)


class Allocations:
    """Opens steps for one run, and asks Slurm why one ended; what it says is used for all nodes of a job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[object, tuple[float, SlurmJob | Mapping[str, SlurmNode] | Unreachable]] = {}

    def connect(self, node: Node) -> SlurmStream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""
        job = node.slurm.job or os.environ.get("SLURM_JOB_ID")
        if not job:
            raise no_allocation()
        try:
            return SlurmStream(self, str(job), node)
        except FileNotFoundError as error:
            raise no_tool("srun") from error

    def why(self, number: str, name: str, says: str, complaint: str, seconds: float, *, lives: bool) -> Unreachable:
        """Why there is no step of this job on this node, or none any more.

        `says` is what was noticed of it; `complaint` what its srun said, `seconds` after it was started; `lives`: it has
        not ended."""
        seen = said(complaint)
        told = refusal(complaint, number, name, seconds)
        if told and told.cause == "slurm-auth-failed":
            return told  # nobody else would believe us either
        try:
            job = self._ask(("job", number), lambda: job_of(number))
            over = ended(job, name, seen)
            if over and job.state != "NODE_FAIL":
                return over
            node = self._ask(("nodes", job.nodes), lambda: nodes_of(job.nodes)).get(name)
        except Unreachable as error:
            if error.cause == "slurm-auth-failed":
                return error
            return Unreachable(
                error.cause, f"{says}; why, Slurm does not tell: {error.says}", error.remedy, (*seen, *error.evidence)
            )
        if told := told or (node and unhealthy(node, seen)) or over:
            return told
        if lives:
            return silent(name, says, seen)
        return Unreachable(
            "slurm-step-failed",
            f"{says}; job {number} runs, and Slurm has nothing against {name}" + (f": {seen[-1]!r}" if seen else ""),
            f"see whether a step starts there: `srun --jobid={word(number)} --overlap -N1 -n1 -w {word(name)} hostname`; "
            f"slurmd's log on {name} says what it made of ours",
            seen,
        )

    def _ask(self, key: object, question: Callable[[], T]) -> T:
        with self._lock:
            when, told = self._told.get(key, (-FRESH_S, None))
            if time.monotonic() - when > FRESH_S:
                try:
                    told = question()  # type: ignore[assignment]
                except Unreachable as error:
                    told = error
                self._told[key] = time.monotonic(), told  # type: ignore[assignment]
        if isinstance(told, Unreachable):
            raise told
        return told  # type: ignore[return-value]


class SlurmStream(ProcessStream):
    """The supervisor's stdin and stdout over one step. Raises FileNotFoundError where there is no srun."""

    unanswered = "slurm-unreachable"

    def __init__(self, allocations: Allocations, job: str, node: Node) -> None:
        self._allocations = allocations
        self._job = job
        self._name = node.name
        self._begun = time.monotonic()
        forget = f"unset {OF_THE_TASK}; {command(node.interpreter)}"
        super().__init__(
            ["srun", f"--jobid={job}", f"--nodelist={node.name}", *STEP, "/bin/sh", "-c", forget], environment()
        )

    def close(self) -> None:
        """A supervisor that heard nothing for so long has cleaned up by itself: an srun that still waits, waits for nobody."""
        super().close()
        self._process.terminate()

    def kill(self) -> None:
        """The supervisor does not run: there is nobody who would have to clean up."""
        self._process.terminate()

    def why(self, says: str) -> Unreachable:
        seconds = time.monotonic() - self._begun
        lives = self._process.poll() is None and not self._drained.is_set()
        return self._allocations.why(self._job, self._name, says, self.complaint(), seconds, lives=lives)


def environment() -> dict[str, str]:
    """What Slurm's programs are started with: our own, so that a step finds what the job would, without their options."""
    theirs = ("SLURM_", "SRUN_", "SALLOC_", "SBATCH_", "SCANCEL_", "SCONTROL_")
    return {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(theirs)}


def ask(*argv: str, about: str = "", timeout_s: float = ASKED_S) -> str:
    """Run one of Slurm's programs and give what it says. Raises Unreachable. `about`: the job's number."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environment(),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise no_tool(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        raise _no_munge() or no_controller(()) from error
    if done.returncode == 0:
        return done.stdout
    raise refusal(done.stderr, about) or Unreachable(
        "slurm-step-failed",
        f"`{argv[0]}` ended with code {done.returncode}"
        + (f": {done.stderr.strip().splitlines()[-1]}" if done.stderr.strip() else ""),
        f"see what it says by hand: `{' '.join(map(word, argv))}`",
        said(done.stderr),
    )


def _no_munge() -> Unreachable | None:
    """Whether it is munge that keeps Slurm's programs waiting: they try it for a minute before they say a word."""
    try:
        done = subprocess.run(
            ["munge", "-n"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASKED_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return refusal(f"munge: {done.stderr}", "") if done.returncode else None


def job_of(number: str) -> SlurmJob:
    """What Slurm knows of a job. Raises Unreachable."""
    return job_in(ask("scontrol", "--details", "show", "job", number, about=number), number)


def nodes_of(names: Sequence[str]) -> Mapping[str, SlurmNode]:
    """What Slurm knows of these nodes, by name. Raises Unreachable."""
    return nodes_in(ask("scontrol", "show", "node", ",".join(names)))


def on_node(job: str, node: str, *argv: str, timeout_s: float = 15.0) -> str:
    """What a program prints that is run on a node of a job. Raises Unreachable."""
    return ask("srun", f"--jobid={job}", f"--nodelist={node}", *STEP, *argv, about=job, timeout_s=timeout_s)


def no_allocation() -> Unreachable:
    return Unreachable(
        "slurm-no-allocation",
        "there is no Slurm job to run in: SLURM_JOB_ID is not set here, and the inventory names no job",
        "get one: `salloc -N2`, and run it again there; or name a job of yours: `-i slurm:JOBID` (`squeue --me` lists them)",
    )


def no_tool(name: str) -> Unreachable:
    return Unreachable(
        "slurm-tool-missing",
        f"there is no `{name}` on this machine's PATH",
        "run it where Slurm's commands are, on a login node or inside the job; or put them on PATH (`module load slurm`)",
        (f"PATH={os.environ.get('PATH', '')}",),
    )
