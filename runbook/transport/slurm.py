"""Slurm nodes: a step of the job on each, whose stdin and stdout `srun` carries.

Facts this stands on, measured on Slurm 22.05: without `--unbuffered` what does not end in a newline is held back for
seconds; with it, stdout is a pty that changes no byte. When stdin ends, the supervisor sees it at once and cleans up;
when srun is killed, the supervisor is killed half a second later and cannot. So srun is never signalled while a
supervisor may live. What srun and a job's environment say about tasks (SLURM_NTASKS=1, SLURM_PROCID=0) is true of the
supervisor and of no rank: a trainer that reads it would believe that it is alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbook.causes.catalogue import unreachable_for
from runbook.files.node_sets import expand, split_names
from runbook.model.command_quoting import word
from runbook.model.errors import Unreachable
from runbook.model.inventory import MOST_GPUS, Node
from runbook.model.units import number
from runbook.transport.bootstrap import command
from runbook.transport.local_programs import LatestAnswers, no_tool, not_understood, printed
from runbook.transport.stream import ProcessStream

NONE = ("(null)", "None", "")

_GPUS = re.compile(r"\bgpu(?::[^:(),\s]+)?(?::(?P<count>\d+))?\((?:IDX|CNT):(?P<list>[\d,-]{0,2000})[^)]{0,300}\)")

_AUTH = re.compile(r"munge|authentication|credential|MUNGE", re.IGNORECASE)
_CONTROLLER = re.compile(
    r"unable to contact slurm controller|unable to connect to|connect failure|connection (?:refused|timed out)|"
    r"could not establish a configuration source|socket timed out",
    re.IGNORECASE,
)
_HUNG_UP = re.compile(r"(?:task|application) launch .{0,300}failed.{0,300}zero bytes were transmitted", re.IGNORECASE)
_NO_SLURMD = re.compile(
    r"(?:task|application) launch .{0,300}failed.{0,300}(?:connection failure|unable to connect|timed out)",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id|expired or invalid job|does not exist", re.IGNORECASE)
_NOT_YOURS = re.compile(r"access/permission denied|user not authorized", re.IGNORECASE)
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?P<why>.*?)\s*\*\*\*")

AT_ONCE_S = 5.0
"""slurmd hangs up at once on a credential that it does not accept; an order that it did not receive is given up after
MessageTimeout."""

ENDINGS: Mapping[str, str] = {
    "BOOT_FAIL": "its nodes could not be started",
    "CANCELLED": "it was cancelled (scancel)",
    "COMPLETED": "it has completed",
    "DEADLINE": "it would have missed its deadline",
    "FAILED": "its batch script failed",
    "NODE_FAIL": "one of its nodes failed",
    "OUT_OF_MEMORY": "it used more memory than it had asked for",
    "PREEMPTED": "another job took its place",
    "REVOKED": "another cluster took it",
    "TIMEOUT": "its time limit is over",
}
NEXT: Mapping[str, str] = {
    "NODE_FAIL": "`sinfo -R` names the node and why; submit it again without it: `sbatch --exclude=NODE …`",
    "OUT_OF_MEMORY": "ask for more: `--mem=0` takes all of a node's",
    "TIMEOUT": "ask for more time (`--time=`), or for less work",
}
RUNNING = ("RUNNING", "CONFIGURING")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """`gpus`: the device indices of each node, as Slurm numbers them on the whole node; none where the job has none."""

    id: str
    state: str
    reason: str
    restarts: int
    nodes: tuple[str, ...]
    limit: str = ""
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """`states` is Slurm's state, taken apart: ("IDLE", "DRAIN"); `silent`: slurmd does not answer slurmctld."""

    name: str
    address: str
    states: tuple[str, ...]
    silent: bool
    reason: str


def hosts(text: str) -> tuple[str, ...]:
    """The names in `gn[01-02],login1`; none for `(null)`. Raises ValueError for another text."""
    return () if text in NONE else tuple(name for part in split_names(text) for name in expand(part))


def job_in(text: str, number: str) -> SlurmJob:
    """Of `scontrol --details show job`. Raises Unreachable for a text that is none, and for more jobs than one."""
    records = [record for record in re.split(r"(?m)^(?=JobId=)", text) if record.startswith("JobId=")]
    if len(records) > 1:
        raise unreachable_for(
            "slurm-job-unknown",
            f"{number} is {len(records)} jobs: an array, or one of several components",
            way="unclear",
            number=word(number),
        )
    try:
        record = records[0]
        nodes = hosts(_value(record, "NodeList"))
        gpus: dict[str, tuple[int, ...]] = {}
        for match in re.finditer(r"(?m)^[ \t]+Nodes=(\S+) .*?\bGRES=(\S*)", record):
            gpus.update(dict.fromkeys(hosts(match[1]), _indices(match[2])))
        limit = _value(record, "TimeLimit")
        state, reason, restarts = _value(record, "JobState"), _value(record, "Reason"), _value(record, "Restarts")
        return SlurmJob(
            _value(record, "JobId"), state, reason, restarts=int(restarts), nodes=nodes, limit=limit, gpus=gpus
        )
    except (IndexError, ValueError) as error:
        raise _not_known(f"job {word(number)}", text, error) from error


def nodes_in(text: str) -> dict[str, SlurmNode]:
    """Nodes of `scontrol show node`, by name. Raises Unreachable for a text that is none."""
    records = (record for record in re.split(r"(?m)^(?=NodeName=)", text) if record.startswith("NodeName="))
    try:
        return {node.name: node for node in map(_node_in, records)}
    except ValueError as error:
        raise _not_known("node", text, error) from error


def _node_in(record: str) -> SlurmNode:
    name, state = _value(record, "NodeName"), _value(record, "State")
    marks = state.rstrip("*~#!%$@^-+")
    reason = re.search(r"(?m)^[ \t]*Reason=(.*)$", record)
    address = re.search(r"(?m)\bNodeAddr=(\S+)", record)
    silent = "*" in state or "NOT_RESPONDING" in state
    why = reason[1].strip() if reason else ""
    return SlurmNode(name, address[1] if address else name, tuple(marks.split("+")), silent, why)


def _not_known(what: str, text: str, error: Exception) -> Unreachable:
    says = f"`scontrol show {what}` printed something unexpected: {error}"
    seen = tuple(text.strip().splitlines()[:4])
    return unreachable_for("tool-output-unknown", says, seen, way="scontrol", record=what)


def _value(record: str, key: str) -> str:
    """The value of a line's first key, or of a later one; Slurm's own keys come before what users wrote."""
    match = re.search(rf"(?m)^(?:[ \t]*|(?!JobId=).* ){key}=(\S*)", record)
    if match is None:
        raise ValueError(f"there is no {key} in it")
    return match[1]


def _indices(gres: str) -> tuple[int, ...]:
    """`gpu:a100:2(IDX:0-1)`, several with commas: the indices."""
    found: set[int] = set()
    for match in _GPUS.finditer(gres):
        for low, _, high in (part.partition("-") for part in match["list"].split(",") if part):
            first, last = number(low), number(high or low)
            if max(last - first, len(found)) >= MOST_GPUS:
                raise ValueError(f"more than {MOST_GPUS} GPUs of a node")
            found.update(range(first, last + 1))
    return tuple(sorted(found))


def said(complaint: str) -> tuple[str, ...]:
    """The last lines of what one of Slurm's programs wrote to stderr, as evidence."""
    lines = [line for line in complaint.splitlines() if line.strip() and "lacks support for cpu binding" not in line]
    return tuple(lines[-4:])


def refusal(complaint: str, job: str, node: str | None = None, seconds: float = 0.0) -> Unreachable | None:
    """What the words of one of Slurm's programs mean, which were about a job, and perhaps about a node of it; None
    where they tell nothing. `seconds`: how long the program took to say them."""
    seen = said(complaint)
    if _AUTH.search(complaint):
        says = "Slurm does not accept our identity: munge made no credential, or the other side rejects it"
        return _not_believed(says, seen)
    if node is not None and _HUNG_UP.search(complaint) and seconds > AT_ONCE_S:
        says = f"slurmd on {node} accepted our connection and did not answer our request within {seconds:.0f} s: "
        says += "full-size packets may not get through, or it hangs"
        return unreachable_for("slurm-unreachable", says, seen, way="broke", node=word(node), on=node)
    if node is not None and _HUNG_UP.search(complaint):
        says = f"slurmd on {node} accepted our request and hung up without an answer, as when it rejects a credential"
        return _not_believed(says, seen)
    if node is not None and _NO_SLURMD.search(complaint):
        return _no_slurmd(node, seen)
    if _CONTROLLER.search(complaint):
        return no_controller(seen)
    if _UNKNOWN_JOB.search(complaint):
        says = f"Slurm knows no job {job}: it never existed, or ended longer ago than Slurm remembers"
    elif _NOT_YOURS.search(complaint):
        says = f"job {job} is not yours: Slurm starts nothing of yours in it"
    else:
        return None
    return unreachable_for("slurm-job-unknown", says, seen, way="not-known")


def silent(node: str, says: str, seen: tuple[str, ...]) -> Unreachable:
    """The failure for a step that neither ends nor prints: slurmctld takes minutes (SlurmdTimeout) to notice a lost
    node."""
    return unreachable_for(
        "slurm-unreachable",
        f"{says}; its job runs, and Slurm has not noticed a failure yet",
        seen,
        way="silent",
        node=node,
        node_typed=word(node),
    )


def no_controller(seen: tuple[str, ...]) -> Unreachable:
    return unreachable_for(
        "slurm-unreachable", "slurmctld, which knows the jobs, does not answer this machine", seen, way="controller"
    )


def _no_slurmd(node: str, seen: tuple[str, ...]) -> Unreachable:
    return unreachable_for("slurm-unreachable", f"slurmd on {node} does not answer", seen, way="slurmd", node=node)


def _not_believed(says: str, seen: tuple[str, ...]) -> Unreachable:
    return unreachable_for("slurm-auth-failed", says, seen, way="live")


def ended(job: SlurmJob, node: str | None, seen: tuple[str, ...] = ()) -> Unreachable | None:
    """Why a job has no step on a node, or, without one, anywhere; None where it should have. `seen`: what srun said."""
    about = (f"scontrol: job {job.id}: {job.state}" + (f", {job.reason}" if job.reason not in NONE else ""),)
    evidence = (*seen, *about)
    cancelled = next((match for line in seen if (match := _CANCELLED.search(line))), None)
    why = cancelled["why"].strip().lower() if cancelled else ""
    cause = "slurm-job-ended"
    if job.restarts and (job.state not in RUNNING or "requeue" in why):
        way, says = "requeued", f"job {job.id} was requeued: it ended here, and is {job.state.lower()} once more"
    elif job.state == "PENDING":
        cause, way = "slurm-no-allocation", "pending"
        says = f"job {job.id} has not started: it has no nodes yet ({job.reason})"
    elif job.state not in RUNNING or why:
        return _over(job, why, evidence)
    elif node is not None and node not in job.nodes:
        cause, way, says = "slurm-node-not-in-job", "live", f"{node} is not among the nodes of job {job.id}"
    elif cancelled:
        way, says = "step", f"our step on {node} was cancelled; job {job.id} itself runs on"
    else:
        return None
    return unreachable_for(
        cause,
        says,
        evidence,
        way=way,
        job=word(job.id),
        pending=_pending(job.reason),
        nodes=word(",".join(job.nodes)),
        node=node,
        pattern=word(f"all:!{node}"),
    )


def _over(job: SlurmJob, why: str, evidence: tuple[str, ...]) -> Unreachable:
    """The state of a job is known only once it is over; until then srun knows more: `why`."""
    state = "TIMEOUT" if "time limit" in why else "" if why else "CANCELLED"
    state = job.state if job.state in ENDINGS else state
    says = ENDINGS.get(state, f"Slurm ended it {why}")
    if state == "TIMEOUT" and job.limit:
        says += f" ({job.limit})"
    remedy = NEXT.get(state, "get another one (`salloc`, `sbatch`)") + ", and run this again in it"
    return Unreachable("slurm-job-ended", f"job {job.id} has ended: {says}", remedy, evidence)


def _pending(reason: str) -> str:
    if "NODE" in reason.upper():
        return "`sinfo -R` shows nodes that are down or drained, and why"
    if "Held" in reason:
        return "it is held: `scontrol release` lets it go"
    return "its reason is explained in `man squeue`, JOB REASON CODES"


BAD_STATES: Mapping[str, str] = {
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained",
    "DOWN": "down",
    "FAIL": "failing",
    "FAILING": "failing",
    "POWERED_DOWN": "powered down",
    "POWERING_DOWN": "powered down",
}


def unhealthy(node: SlurmNode, seen: tuple[str, ...] = ()) -> Unreachable | None:
    """The fault of a node that Slurm itself reports; None without one."""
    bad = list(dict.fromkeys(BAD_STATES[state] for state in node.states if state in BAD_STATES))
    if not (bad or node.silent):
        return None
    evidence = (
        *seen,
        f"scontrol: {node.name}: {'+'.join(node.states)}" + (f", Reason={node.reason}" if node.reason else ""),
    )
    if node.silent and not bad:
        return _no_slurmd(node.name, evidence)
    return unreachable_for(
        "slurm-node-drained",
        f"{node.name} is {' and '.join(bad)}" + (f": {node.reason}" if node.reason else ", and no reason is given"),
        evidence,
        way="live",
        node=word(node.name),
    )


ASKED_S = 3.0
"""For a question to slurmctld. The one thread that sends all beats may have to ask it."""

FRESH_S = 2.0
"""How old an answer may be: when a job ends, all of its nodes ask at once."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""Which cluster is meant. All else that Slurm's programs read from the environment would change what we ask them
for."""

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
        self._answers = LatestAnswers()

    def connect(self, node: Node) -> SlurmStream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""
        job = node.slurm.job or os.environ.get("SLURM_JOB_ID")
        if not job:
            raise no_allocation()
        try:
            return SlurmStream(self, str(job), node)
        except OSError as error:
            raise no_tool("srun", error) from error

    def why(self, number: str, name: str, says: str, complaint: str, seconds: float, *, lives: bool) -> Unreachable:
        """Why there is no step of this job on this node, or none any more.

        `says` is what was noticed of it; `complaint` what its srun said, `seconds` after it was started; `lives`: it
        has not ended."""
        seen = said(complaint)
        fault = refusal(complaint, number, name, seconds)
        if fault and fault.cause == "slurm-auth-failed":
            return fault  # no other of Slurm's programs would accept us either
        try:
            job = self._answers.ask(("job", number), FRESH_S, lambda: job_of(number))
            over = ended(job, name, seen)
            if over and job.state != "NODE_FAIL":
                return over
            node = self._answers.ask(("nodes", job.nodes), FRESH_S, lambda: nodes_of(job.nodes)).get(name)
        except Unreachable as error:
            if error.cause == "slurm-auth-failed":
                return error
            return Unreachable(
                error.cause, f"{says}; Slurm gives no reason: {error.says}", error.remedy, (*seen, *error.evidence)
            )
        if fault := fault or (node and unhealthy(node, seen)) or over:
            return fault
        if lives:
            return silent(name, says, seen)
        return unreachable_for(
            "slurm-step-failed",
            f"{says}; job {number} runs, and Slurm reports no fault of {name}" + (f": {seen[-1]!r}" if seen else ""),
            seen,
            way="not-started",
            number=word(number),
            name=word(name),
            on=name,
        )


class SlurmStream(ProcessStream):
    """The supervisor's stdin and stdout over one step. Raises OSError where srun does not start."""

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
        """After this long without a beat a supervisor has cleaned up by itself: an srun that still waits can be
        killed."""
        super().close()
        self._process.terminate()

    def kill(self) -> None:
        """The supervisor does not run: there is nothing to clean up."""
        self._process.terminate()

    def why(self, says: str) -> Unreachable:
        seconds = time.monotonic() - self._begun
        return self._allocations.why(self._job, self._name, says, self.complaint(), seconds, lives=self.lives)


def environment() -> dict[str, str]:
    """What Slurm's programs are started with: our own, so that a step finds what the job would, without their
    options."""
    theirs = ("SLURM_", "SRUN_", "SALLOC_", "SBATCH_", "SCANCEL_", "SCONTROL_")
    return {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(theirs)}


def ask(*argv: str, about: str = "", timeout_s: float = ASKED_S) -> str:
    """Run one of Slurm's programs and give what it says. Raises Unreachable. `about`: the job's number."""
    try:
        done = printed(argv, timeout_s, environment())
    except OSError as error:
        raise no_tool(argv[0], error) from error
    except subprocess.TimeoutExpired as error:
        raise _no_munge() or no_controller(()) from error
    if done.returncode == 0:
        return done.stdout
    raise refusal(done.stderr, about) or not_understood(argv[0], done, said(done.stderr))


def _no_munge() -> Unreachable | None:
    """Whether munge keeps Slurm's programs waiting: they try it for a minute before they print anything."""
    try:
        done = printed(["munge", "-n"], ASKED_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return refusal(f"munge: {done.stderr}", "") if done.returncode else None


def job_of(number: str) -> SlurmJob:
    """What Slurm knows of a job. Raises Unreachable."""
    return job_in(ask("scontrol", "--details", "show", "job", number, about=number), number)


def nodes_of(names: Sequence[str]) -> Mapping[str, SlurmNode]:
    """What Slurm knows of these nodes, by name. Raises Unreachable."""
    return nodes_in(ask("scontrol", "show", "node", ",".join(names)))


def on_node(job: str, node: str, *argv: str) -> str:
    """What a program prints that is run on a node of a job. Raises Unreachable."""
    return ask("srun", f"--jobid={job}", f"--nodelist={node}", *STEP, *argv, about=job, timeout_s=15.0)


def no_allocation() -> Unreachable:
    return unreachable_for(
        "slurm-no-allocation",
        "there is no Slurm job to run in: SLURM_JOB_ID is not set here, and the inventory names no job",
        way="none",
    )
