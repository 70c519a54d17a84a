"""Slurm nodes: the supervisor is a step of the Slurm job on its node, and `srun` carries its stdin and stdout.

Measured on Slurm 22.05: without `--unbuffered`, output that does not end in a newline is held back for seconds; with
it, stdout is a pty that changes no byte. When stdin ends, the supervisor sees it at once and cleans up; when srun is
killed, the supervisor is killed half a second later and cannot clean up. So srun is never signalled while a supervisor
may live. The environment's variables about tasks (SLURM_NTASKS=1, SLURM_PROCID=0) are true of the supervisor and of no
rank: a trainer that reads them would believe that it is alone.
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
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import MAX_GPUS_PER_NODE, Node
from runbook.model.units import parse_number
from runbook.transport.bootstrap import bootstrap_command
from runbook.transport.local_programs import LatestAnswers, run_program, tool_start_failure, unrecognized_stderr_failure
from runbook.transport.stream import ProcessStream

NO_VALUE_TEXTS = ("(null)", "None", "")
"""Slurm's texts for a value that is not there."""

_GRES_GPUS = re.compile(r"\bgpu(?::[^:(),\s]+)?(?::(?P<count>\d+))?\((?:IDX|CNT):(?P<list>[\d,-]{0,2000})[^)]{0,300}\)")

_AUTH_FAILED = re.compile(r"munge|authentication|credential|MUNGE", re.IGNORECASE)
_NO_CONTROLLER = re.compile(
    r"unable to contact slurm controller|unable to connect to|connect failure|connection (?:refused|timed out)|"
    r"could not establish a configuration source|socket timed out",
    re.IGNORECASE,
)
_SLURMD_HUNG_UP = re.compile(
    r"(?:task|application) launch .{0,300}failed.{0,300}zero bytes were transmitted", re.IGNORECASE
)
_NO_SLURMD = re.compile(
    r"(?:task|application) launch .{0,300}failed.{0,300}(?:connection failure|unable to connect|timed out)",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id|expired or invalid job|does not exist", re.IGNORECASE)
_ACCESS_DENIED = re.compile(r"access/permission denied|user not authorized", re.IGNORECASE)
_CANCELLED_STEP = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?P<why>.*?)\s*\*\*\*")

REJECTION_DEADLINE_S = 5.0
"""The seconds within which slurmd hangs up on a credential that it rejects. A hang-up after more time means a request
that did not arrive, which is given up after MessageTimeout."""

FINAL_STATE_MEANINGS: Mapping[str, str] = {
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
"""What a final state of a Slurm job means, as the end of a sentence."""
FINAL_STATE_REMEDIES: Mapping[str, str] = {
    "NODE_FAIL": "`sinfo -R` names the node and why; submit it again without it: `sbatch --exclude=NODE …`",
    "OUT_OF_MEMORY": "ask for more: `--mem=0` takes all of a node's",
    "TIMEOUT": "ask for more time (`--time=`), or for less work",
}
"""What to do after such a state, where there is more to do than to get another job."""
RUNNING_STATES = ("RUNNING", "CONFIGURING")
"""The states of a Slurm job that has its nodes."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as `scontrol show job` describes it. `gpus`: the device indices that the job has on each node, as Slurm
    numbers them on the whole node; a node without GPUs of the job has none or is missing."""

    id: str
    state: str
    reason: str
    restarts: int
    nodes: tuple[str, ...]
    limit: str = ""
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `scontrol show node` describes it. `states` are the parts of Slurm's state: ("IDLE", "DRAIN").
    `silent`: slurmd does not answer slurmctld."""

    name: str
    address: str
    states: tuple[str, ...]
    silent: bool
    reason: str


def expand_host_list(text: str) -> tuple[str, ...]:
    """The names that a list of hosts such as `gn[01-02],login1` stands for; none for `(null)`. Raises ValueError for
    another text."""
    return () if text in NO_VALUE_TEXTS else tuple(name for part in split_names(text) for name in expand(part))


def parse_slurm_job(text: str, number: str) -> SlurmJob:
    """The job in the output of `scontrol --details show job`. Raises Unreachable for another text, and for several
    jobs."""
    records = [record for record in re.split(r"(?m)^(?=JobId=)", text) if record.startswith("JobId=")]
    if len(records) > 1:
        raise unreachable_for(
            "slurm-job-unknown",
            f"{number} is {len(records)} jobs: an array, or one of several components",
            way="unclear",
            number=shell_word(number),
        )
    try:
        record = records[0]
        nodes = expand_host_list(_record_value(record, "NodeList"))
        gpus: dict[str, tuple[int, ...]] = {}
        for match in re.finditer(r"(?m)^[ \t]+Nodes=(\S+) .*?\bGRES=(\S*)", record):
            gpus.update(dict.fromkeys(expand_host_list(match[1]), _gpu_indices(match[2])))
        limit = _record_value(record, "TimeLimit")
        state, reason, restarts = (
            _record_value(record, "JobState"),
            _record_value(record, "Reason"),
            _record_value(record, "Restarts"),
        )
        return SlurmJob(
            _record_value(record, "JobId"), state, reason, restarts=int(restarts), nodes=nodes, limit=limit, gpus=gpus
        )
    except (IndexError, ValueError) as error:
        raise _unreadable_scontrol_failure(f"job {shell_word(number)}", text, error) from error


def parse_slurm_nodes(text: str) -> dict[str, SlurmNode]:
    """The nodes in the output of `scontrol show node`, by name. Raises Unreachable for a text that cannot be read."""
    records = (record for record in re.split(r"(?m)^(?=NodeName=)", text) if record.startswith("NodeName="))
    try:
        return {node.name: node for node in map(_parse_slurm_node, records)}
    except ValueError as error:
        raise _unreadable_scontrol_failure("node", text, error) from error


def _parse_slurm_node(record: str) -> SlurmNode:
    name, state = _record_value(record, "NodeName"), _record_value(record, "State")
    states = (one.strip("*~#!%$@^-") for one in state.split("+"))
    reason = re.search(r"(?m)^[ \t]*Reason=(.*)$", record)
    address = re.search(r"(?m)\bNodeAddr=(\S+)", record)
    silent = "*" in state or "NOT_RESPONDING" in state
    why = reason[1].strip() if reason else ""
    return SlurmNode(name, address[1] if address else name, tuple(one for one in states if one), silent, why)


def _unreadable_scontrol_failure(what: str, text: str, error: Exception) -> Unreachable:
    """The failure for an output of `scontrol show` that cannot be read."""
    says = f"`scontrol show {what}` printed something unexpected: {error}"
    seen = tuple(text.strip().splitlines()[:4])
    return unreachable_for("tool-output-unknown", says, seen, way="scontrol", record=what)


def _record_value(record: str, key: str) -> str:
    """The value of `key` in a record: its first occurrence, since Slurm's own keys precede texts that users wrote. The
    `JobId=` line is searched for its first key only. Raises ValueError without such a key."""
    match = re.search(rf"(?m)^(?:[ \t]*|(?!JobId=).* ){key}=(\S*)", record)
    if match is None:
        raise ValueError(f"there is no {key} in it")
    return match[1]


def _gpu_indices(gres: str) -> tuple[int, ...]:
    """The device indices in a GRES text such as `gpu:a100:2(IDX:0-1)`, which may list several kinds."""
    found: set[int] = set()
    for match in _GRES_GPUS.finditer(gres):
        for low, _, high in (part.partition("-") for part in match["list"].split(",") if part):
            first, last = parse_number(low), parse_number(high or low)
            if max(last - first, len(found)) >= MAX_GPUS_PER_NODE:
                raise ValueError(f"more than {MAX_GPUS_PER_NODE} GPUs of a node")
            found.update(range(first, last + 1))
    return tuple(sorted(found))


def stderr_evidence(complaint: str) -> tuple[str, ...]:
    """The last lines of what one of Slurm's programs wrote to stderr, as evidence."""
    lines = [line for line in complaint.splitlines() if line.strip() and "lacks support for cpu binding" not in line]
    return tuple(lines[-4:])


def slurm_stderr_failure(complaint: str, job: str, node: str | None = None, seconds: float = 0.0) -> Unreachable | None:
    """The failure that the stderr of one of Slurm's programs means; None for unknown words. The program was asked about
    the job `job`, and perhaps about a `node` of it; it took `seconds` to answer."""
    seen = stderr_evidence(complaint)
    if _AUTH_FAILED.search(complaint):
        says = "Slurm does not accept our identity: munge made no credential, or the other side rejects it"
        return _slurm_auth_failure(says, seen)
    if node is not None and _SLURMD_HUNG_UP.search(complaint) and seconds > REJECTION_DEADLINE_S:
        says = f"slurmd on {node} accepted our connection and did not answer our request within {seconds:.0f} s: "
        says += "full-size packets may not get through, or it hangs"
        return unreachable_for("slurm-unreachable", says, seen, way="broke", node=shell_word(node), on=node)
    if node is not None and _SLURMD_HUNG_UP.search(complaint):
        says = f"slurmd on {node} accepted our request and hung up without an answer, as when it rejects a credential"
        return _slurm_auth_failure(says, seen)
    if node is not None and _NO_SLURMD.search(complaint):
        return _no_slurmd_failure(node, seen)
    if _NO_CONTROLLER.search(complaint):
        return no_slurmctld_failure(seen)
    if _UNKNOWN_JOB.search(complaint):
        says = f"Slurm knows no job {job}: it never existed, or ended longer ago than Slurm remembers"
    elif _ACCESS_DENIED.search(complaint):
        says = f"job {job} is not yours: Slurm starts nothing of yours in it"
    else:
        return None
    return unreachable_for("slurm-job-unknown", says, seen, way="not-known")


def silent_step_failure(node: str, says: str, seen: tuple[str, ...]) -> Unreachable:
    """The failure for a step that neither ends nor prints: slurmctld takes minutes (SlurmdTimeout) to notice a lost
    node."""
    return unreachable_for(
        "slurm-unreachable",
        f"{says}; its job runs, and Slurm has not noticed a failure yet",
        seen,
        way="silent",
        node=node,
        node_typed=shell_word(node),
    )


def no_slurmctld_failure(seen: tuple[str, ...]) -> Unreachable:
    """The failure for slurmctld when it does not answer."""
    return unreachable_for(
        "slurm-unreachable", "slurmctld, which knows the jobs, does not answer this machine", seen, way="controller"
    )


def _no_slurmd_failure(node: str, seen: tuple[str, ...]) -> Unreachable:
    return unreachable_for("slurm-unreachable", f"slurmd on {node} does not answer", seen, way="slurmd", node=node)


def _slurm_auth_failure(says: str, seen: tuple[str, ...]) -> Unreachable:
    return unreachable_for("slurm-auth-failed", says, seen, way="live")


def no_step_failure(job: SlurmJob, node: str | None, seen: tuple[str, ...] = ()) -> Unreachable | None:
    """Why a job can have no step on `node` (without a `node`: on any); None when it should have one. `seen`: the last
    lines of srun."""
    about = (f"scontrol: job {job.id}: {job.state}" + (f", {job.reason}" if job.reason not in NO_VALUE_TEXTS else ""),)
    evidence = (*seen, *about)
    cancelled = next((match for line in seen if (match := _CANCELLED_STEP.search(line))), None)
    why = cancelled["why"].strip().lower() if cancelled else ""
    cause = "slurm-job-ended"
    if job.restarts and (job.state not in RUNNING_STATES or "requeue" in why):
        way, says = "requeued", f"job {job.id} was requeued: it ended here, and is {job.state.lower()} once more"
    elif job.state == "PENDING":
        cause, way = "slurm-no-allocation", "pending"
        says = f"job {job.id} has not started: it has no nodes yet ({job.reason})"
    elif job.state not in RUNNING_STATES or why:
        return _ended_job_failure(job, why, evidence)
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
        job=shell_word(job.id),
        pending=_pending_job_advice(job.reason),
        nodes=shell_word(",".join(job.nodes)),
        node=node,
        pattern=shell_word(f"all:!{node}"),
    )


def _ended_job_failure(job: SlurmJob, why: str, evidence: tuple[str, ...]) -> Unreachable:
    """The failure for a job that has ended. `why` is the reason that srun gave: while Slurm ends a job, its state does
    not tell how yet."""
    state = "TIMEOUT" if "time limit" in why else "" if why else "CANCELLED"
    state = job.state if job.state in FINAL_STATE_MEANINGS else state
    says = FINAL_STATE_MEANINGS.get(state, f"Slurm ended it {why}")
    if state == "TIMEOUT" and job.limit:
        says += f" ({job.limit})"
    remedy = FINAL_STATE_REMEDIES.get(state, "get another one (`salloc`, `sbatch`)") + ", and run this again in it"
    return Unreachable("slurm-job-ended", f"job {job.id} has ended: {says}", remedy, evidence)


def _pending_job_advice(reason: str) -> str:
    """What to do about a job that waits for this reason."""
    if "NODE" in reason.upper():
        return "`sinfo -R` shows nodes that are down or drained, and why"
    if "Held" in reason:
        return "it is held: `scontrol release` lets it go"
    return "its reason is explained in `man squeue`, JOB REASON CODES"


BAD_NODE_STATES: Mapping[str, str] = {
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained",
    "DOWN": "down",
    "FAIL": "failing",
    "FAILING": "failing",
    "POWERED_DOWN": "powered down",
    "POWERING_DOWN": "powered down",
}


def node_fault(node: SlurmNode, seen: tuple[str, ...] = ()) -> Unreachable | None:
    """The fault of a node that Slurm itself reports; None without one."""
    bad = list(dict.fromkeys(BAD_NODE_STATES[state] for state in node.states if state in BAD_NODE_STATES))
    if not (bad or node.silent):
        return None
    evidence = (
        *seen,
        f"scontrol: {node.name}: {'+'.join(node.states)}" + (f", Reason={node.reason}" if node.reason else ""),
    )
    if node.silent and not bad:
        return _no_slurmd_failure(node.name, evidence)
    return unreachable_for(
        "slurm-node-drained",
        f"{node.name} is {' and '.join(bad)}" + (f": {node.reason}" if node.reason else ", and no reason is given"),
        evidence,
        way="live",
        node=shell_word(node.name),
    )


ANSWER_DEADLINE_S = 3.0
"""How long slurmctld may take to answer. The one thread that sends all beats may have to ask it."""

MAX_ANSWER_AGE_S = 2.0
"""How old an answer may be, in seconds: when a job ends, all of its nodes ask at once."""

CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""The variables that say which cluster is meant. Slurm's programs do not get their other variables, which would change
what we ask for."""

SRUN_STEP_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",  # run beside the job's own steps, and take nothing from them
    "--mem=0",
    # No --gres=none: where Slurm guards the devices (ConstrainDevices), ranks of such a step could not open a GPU.
    "--cpu-bind=none",  # ranks are children of the step, and want every core of the job
    "--kill-on-bad-exit=0",
    "--mpi=none",
    "--export=ALL",
    "--chdir=/",
    "--unbuffered",
)
"""The options of srun for a supervisor's step."""
STEP_VARIABLES = (
    "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_GTIDS SLURM_TASK_PID SLURM_TASKS_PER_NODE "
    "SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NODELIST SLURM_NNODES"
)


"""The variables that are unset for a supervisor: they describe its own step, and its ranks must not read them."""


class Allocations:
    """Opens steps for one run, and asks Slurm why a step ended; one answer serves all nodes of a job."""

    def __init__(self) -> None:
        self._answers = LatestAnswers()

    def connect(self, node: Node) -> SlurmStream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""
        job = node.slurm.job or os.environ.get("SLURM_JOB_ID")
        if not job:
            raise no_allocation_failure()
        try:
            return SlurmStream(self, str(job), node)
        except OSError as error:
            raise tool_start_failure("srun", error) from error

    def why(self, number: str, name: str, says: str, complaint: str, seconds: float, *, lives: bool) -> Unreachable:
        """Why the job `number` has no step on the node `name`, or none any more.

        `says` is the sentence about what was noticed; `complaint` is the stderr of its srun, `seconds` after its start;
        `lives`: that srun has not ended."""
        seen = stderr_evidence(complaint)
        fault = slurm_stderr_failure(complaint, number, name, seconds)
        if fault and fault.cause == "slurm-auth-failed":
            return fault  # no other of Slurm's programs would accept us either
        try:
            job = self._answers.ask(("job", number), MAX_ANSWER_AGE_S, lambda: query_slurm_job(number))
            over = no_step_failure(job, name, seen)
            if over and job.state != "NODE_FAIL":
                return over
            node = self._answers.ask(("nodes", job.nodes), MAX_ANSWER_AGE_S, lambda: query_slurm_nodes(job.nodes)).get(
                name
            )
        except Unreachable as error:
            if error.cause == "slurm-auth-failed":
                return error
            return Unreachable(
                error.cause, f"{says}; Slurm gives no reason: {error.says}", error.remedy, (*seen, *error.evidence)
            )
        if fault := fault or (node and node_fault(node, seen)) or over:
            return fault
        if lives:
            return silent_step_failure(name, says, seen)
        return unreachable_for(
            "slurm-step-failed",
            f"{says}; job {number} runs, and Slurm reports no fault of {name}" + (f": {seen[-1]!r}" if seen else ""),
            seen,
            way="not-started",
            number=shell_word(number),
            name=shell_word(name),
            on=name,
        )


class SlurmStream(ProcessStream):
    """The supervisor's stdin and stdout over one step. Raises OSError when srun does not start."""

    unanswered = "slurm-unreachable"

    def __init__(self, allocations: Allocations, job: str, node: Node) -> None:
        self._allocations = allocations
        self._job = job
        self._name = node.name
        self._begun = time.monotonic()
        forget = f"unset {STEP_VARIABLES}; {bootstrap_command(node.interpreter)}"
        super().__init__(
            ["srun", f"--jobid={job}", f"--nodelist={node.name}", *SRUN_STEP_OPTIONS, "/bin/sh", "-c", forget],
            slurm_environment(),
        )

    def close(self) -> None:
        """Close the stream, and end an srun that still waits after END_TIMEOUT_S: without beats the supervisor has
        cleaned up by itself by then."""
        super().close()
        self._process.terminate()

    def kill(self) -> None:
        """End srun. It is called for a supervisor that never answered, so that nothing has to be cleaned up."""
        self._process.terminate()

    def why(self, says: str) -> Unreachable:
        seconds = time.monotonic() - self._begun
        return self._allocations.why(self._job, self._name, says, self.complaint(), seconds, lives=self.lives)


def slurm_environment() -> dict[str, str]:
    """The environment for Slurm's programs: our own, so that a step finds what the job would find, without the
    variables by which these programs take options (except CLUSTER_VARIABLES)."""
    theirs = ("SLURM_", "SRUN_", "SALLOC_", "SBATCH_", "SCANCEL_", "SCONTROL_")
    return {
        name: value for name, value in os.environ.items() if name in CLUSTER_VARIABLES or not name.startswith(theirs)
    }


def run_slurm_program(*argv: str, about: str = "", timeout_s: float = ANSWER_DEADLINE_S) -> str:
    """The stdout of one of Slurm's programs. Raises Unreachable. `about` is the number of the job that is asked
    about."""
    try:
        done = run_program(argv, timeout_s, slurm_environment())
    except OSError as error:
        raise tool_start_failure(argv[0], error) from error
    except subprocess.TimeoutExpired as error:
        raise _munge_failure() or no_slurmctld_failure(()) from error
    if done.returncode == 0:
        return done.stdout
    raise slurm_stderr_failure(done.stderr, about) or unrecognized_stderr_failure(
        argv[0], done, stderr_evidence(done.stderr)
    )


def _munge_failure() -> Unreachable | None:
    """The failure if munge makes no credential; None if it does, or nothing is known. Slurm's programs try it for a
    minute before they print anything."""
    try:
        done = run_program(["munge", "-n"], ANSWER_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return slurm_stderr_failure(f"munge: {done.stderr}", "") if done.returncode else None


def query_slurm_job(number: str) -> SlurmJob:
    """What Slurm knows of a job. Raises Unreachable."""
    return parse_slurm_job(run_slurm_program("scontrol", "--details", "show", "job", number, about=number), number)


def query_slurm_nodes(names: Sequence[str]) -> Mapping[str, SlurmNode]:
    """What Slurm knows of these nodes, by name. Raises Unreachable."""
    return parse_slurm_nodes(run_slurm_program("scontrol", "show", "node", ",".join(names)))


def run_on_job_node(job: str, node: str, *argv: str) -> str:
    """The stdout of a program that is run on a node of a job. Raises Unreachable."""
    return run_slurm_program(
        "srun", f"--jobid={job}", f"--nodelist={node}", *SRUN_STEP_OPTIONS, *argv, about=job, timeout_s=15.0
    )


def no_allocation_failure() -> Unreachable:
    return unreachable_for(
        "slurm-no-allocation",
        "there is no Slurm job to run in: SLURM_JOB_ID is not set here, and the inventory names no job",
        way="none",
    )
