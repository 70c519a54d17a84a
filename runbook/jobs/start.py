"""Starts an attempt in two steps. Prepare: on every node, push and verify the scripts, look for processes that an
earlier attempt left, and have the keepers say that they are ready. Commit: all nodes start their ranks at one moment,
each by its own clock, whose difference from the controller's clock was measured just before.
"""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts, no_answer_outcome
from runbook.checks.ping.host_names import gloo_announced_address, own_name_finding
from runbook.checks.ping.observations import Observations
from runbook.checks.port import ask_port_holders
from runbook.jobs.attempt import LAUNCHER_LOGS_FOLDER, Attempt, job_description
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses, user_stop_finding, wait_until_done
from runbook.launch.launcher_lines import is_python
from runbook.launch.quote import CannotQuote
from runbook.launch.ranks import network_environment
from runbook.launch.script import LAUNCH_SCRIPT_NAME
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome
from runbook.transport import node_answers

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

KEEPER_KILL_TIMEOUT_S = 8.0
"""Seconds that a keeper may take beyond the grace, to kill its process and to record that."""

STACKS_FOLDER = "stacks"
"""The folder inside an attempt's folder in which its ranks write their stacks."""
STACK_ON_SIGNAL = resources.files("runbook.node").joinpath("stack_on_signal.py")
"""The program that makes ranks write their stacks at a signal."""

PROGRAM_TEXT_OPTION = re.compile(r"-[a-z]*c\Z")
"""The option of a shell or a Python that is followed by program text instead of a file: `bash -lc 'python
train.py'`."""

OUTPUT_FILE_OPTION = re.compile(r"-o\Z|--?(?:out|save|dump|export|write|log)", re.IGNORECASE)
"""Options that are followed by a file which the program writes."""
PYTHON_FLAG = re.compile(r"-[bBdEiIOPqsSuvx]+\Z")
"""Python's options that take no value: the word after them may be the program."""

DEFAULT_START_TIMEOUT_S = 30.0
"""Seconds that a node may take to be ready, unless the stage sets `start_timeout`."""


WarningCallback = Callable[[Sequence[str], Finding], None]
"""Called with the names of nodes and a finding that ends nothing."""


def prepare(
    kept: KeptProcesses, attempt: Attempt, *, ready_s: float, facts: Facts, warn: WarningCallback = lambda *_: None
) -> dict[str, Outcome]:
    """Prepares every node; the outcomes of the nodes that are not ready, by name. Empty when every keeper waits for the
    order to start, or at the barrier. `facts` are stored on every node for later commands. `warn` gets findings that do
    not prevent the start."""
    at = kept.at
    nodes = [at.inventory.node(name) for name in kept.nodes]
    answers = at.run.site.each(nodes, lambda node: _prepare_node(kept, attempt, node, facts), timeout_s=ready_s)
    problems: dict[str, Outcome] = {}
    ready: dict[str, Facts] = {}
    for name, answer in answers.items():
        if isinstance(answer, CannotQuote):
            problems[name] = Outcome.failed(
                name, finding_for("program-error", f"the launch script for {name}: {answer}", way="value")
            )
        elif isinstance(answer, BaseException):
            problems[name] = no_answer_outcome(name, "job_control", answer)
        elif finding := _gpu_busy_finding(name, answer):
            problems[name] = Outcome.failed(name, finding)
        else:
            ready[name] = answer
    problems |= _program_file_outcomes(ready)
    if not problems:
        problems |= _held_port_outcome(at, attempt)
    if not problems and _uses_jax_gloo(attempt):
        problems |= _own_name_outcomes(at)
    if problems:
        return problems
    for name, finding in unlike_modules(ready):
        warn([name], finding)
        kept.unlike.setdefault(name, finding)
    for node in nodes:
        for member in kept.on(node.name):
            try:
                _start_keeper(kept, attempt, node, member, ready_s)
            except Unreachable as error:
                member.lost = error
    wait_until_done(kept, lambda: all(m.state != "none" or m.over for m in kept.members), ready_s)
    absent = {m.place.node for m in kept.members if m.state == "none"}
    if absent and at.stopping.is_set():  # the run is ending, so these keepers were not waited for
        return {name: Outcome.unknown(name, user_stop_finding(kept)) for name in kept.nodes}
    return {name: _unready_node_outcome(kept, name, ready_s) for name in kept.nodes if name in absent}


def _prepare_node(kept: KeptProcesses, attempt: Attempt, node: Node, facts: Facts) -> Facts:
    """Prepares one node: folders, scripts and keeper are there. The node's answer."""
    session = kept.at.session(node)
    folder = f"{session.folder}/{attempt.folder}"
    kept.folders[node.name] = folder
    program = attempt.job.programs[node.name]
    files = {
        source.word if source.word.startswith(("/", "~")) else f"{program.workdir or folder}/{source.word}": source
        for source in _named_python_files(program.command)
    }
    order = {
        "do": "prepare",
        "folder": session.folder,
        "attempt": attempt.folder,
        "about": job_description(attempt, node.name, facts),
        "hash": list(files),
    }
    answer = session.call("job_control", order, timeout_s=15.0)
    script = attempt.script(node.name, folder, kept.at.run.made_from)
    for name, data in script.files.items():
        session.push(f"{attempt.folder}/{name}", data, mode=0o700 if name == script.name else 0o600)
    if attempt.job.stacks:
        session.push(f"{attempt.folder}/{STACKS_FOLDER}/sitecustomize.py", STACK_ON_SIGNAL.read_bytes())
        kept.stacks[node.name] = f"{folder}/{STACKS_FOLDER}"
    session.push_program("keeper")
    return {**answer, "script": script.name, "files": files}


@dataclass(frozen=True, slots=True)
class _Source:
    """A word of a command that names a Python file, which has to be the same on every node. `runs`: the file is the
    program, so nothing runs without it. `of_option`: the word is an option's value, and the file may be missing."""

    word: str
    runs: bool = False
    of_option: bool = False


def _named_python_files(command: tuple[str, ...]) -> list[_Source]:
    """The Python files that a command names. Not counted: the word after `-c`, which is program text; a word with `=`,
    which is a setting; the word after an option like `--output`, which the program writes."""
    found = []
    runs = True  # the program has not been named by an earlier word
    for before, here in zip(("", *command), command, strict=False):
        named = here.endswith(".py") and not here.startswith("-") and "=" not in here
        if named and not PROGRAM_TEXT_OPTION.match(before) and not OUTPUT_FILE_OPTION.match(before):
            program = runs and (before == "" or bool(is_python(before) or PYTHON_FLAG.match(before)))
            found.append(_Source(here, program, of_option=before.startswith("-") and not program))
        runs = runs and not (named or here == "-m" or PROGRAM_TEXT_OPTION.match(here))
    return found


def _gpu_busy_finding(node: str, answer: Facts) -> Finding | None:
    """The finding about a process of an earlier attempt that still lives, or about another job on this job's GPUs."""
    if old := answer["alive"]:
        names = ", ".join(f"{one['name']} of attempt {one['attempt']}" for one in old)
        says = f"{names} of this job still runs on {node}, and would meet the new ranks"
        seen = tuple(f"process {one.get('pid')}, started by its keeper {one['keeper']}" for one in old[:6])
        return finding_for("gpu-busy", says, seen, way="our-job", job=shell_word(old[0]["job"]))
    if others := answer["gpus"]:
        one = others[0]
        return finding_for(
            "gpu-busy",
            f"GPU {', '.join(map(str, one['gpus']))} of {node} is used by {one['name']} of the job {one['job']}, "
            "which runs there",
            tuple(f"{o['job']}: {o['name']}, process {o.get('pid')}" for o in others[:6]),
            way="another-job",
            job=shell_word(one["job"]),
        )
    return None


def _program_file_outcomes(ready: dict[str, Facts]) -> dict[str, Outcome]:
    """The outcomes of nodes on which a file of the program is missing, or differs from the one that most nodes have."""
    problems: dict[str, Outcome] = {}
    files = {path for answer in ready.values() for path in answer["sha256"]}
    for path in sorted(files):
        hashes = {name: answer["sha256"][path] for name, answer in ready.items() if path in answer["sha256"]}
        source = next((one["files"][path] for one in ready.values() if path in one["files"]), _Source(path))
        optional = source.of_option or not (source.runs or any(hashes.values()))
        for name in [name for name, found in hashes.items() if found is None and not optional]:
            finding = finding_for("program-error", f"{name} has no readable file {path}", way="not-there")
            problems.setdefault(name, Outcome.failed(name, finding))
        kinds = [found for found in hashes.values() if found]
        usual = max(kinds, key=kinds.count, default=None)
        for name, found in hashes.items():
            if found and found != usual:
                same = [other for other, its in hashes.items() if its == usual]
                finding = finding_for(
                    "program-differs",
                    f"{path} on {name} is not the same file as on {', '.join(same[:4])}: the ranks would run "
                    "different programs",
                    tuple(f"{other}: sha256 {(its or '')[:16]}…" for other, its in hashes.items())[:8],
                    tuple(same),
                    path=path,
                )
                problems.setdefault(name, Outcome.failed(name, finding))
    return problems


def unlike_modules(ready: Mapping[str, Facts]) -> Iterator[tuple[str, Finding]]:
    """The nodes, each with a finding, that have another version of a module which the program imports from its own
    folder. The difference may be intended, as with settings of one node, so it is only a warning. At most four nodes a
    module."""
    for path in sorted({path for answer in ready.values() for path in answer.get("beside", ())}):
        hashes = {name: found for name, one in ready.items() if (found := one.get("beside", {}).get(path))}
        usual = Counter(hashes.values()).most_common(1)[0][0] if hashes else None
        same = [name for name, found in hashes.items() if found == usual]
        for name in [name for name, found in hashes.items() if found != usual][:4]:
            says = f"{path}, which the program imports, is another file on {name} than on {', '.join(same[:4])}"
            seen = tuple(f"{other}: sha256 {its[:16]}…" for other, its in hashes.items())[:8]
            yield name, finding_for("program-differs", says, seen, tuple(same), path=path)


def _held_port_outcome(at: Context, attempt: Attempt) -> dict[str, Outcome]:
    """The master's outcome if a process there holds the rendezvous port of this attempt; else empty."""
    master = attempt.inventory.rendezvous.master
    told = ask_port_holders(at, {master: [attempt.port]}, attempt.port)[master]
    if isinstance(told, Outcome):
        return {master: told}
    return {master: Outcome.failed(master, *told)} if told else {}


def _uses_jax_gloo(attempt: Attempt) -> bool:
    """Whether the nodes communicate over JAX's own gloo, which announces only the address that a node's host name
    resolves to on that node."""
    job, inventory = attempt.job, attempt.inventory
    if job.launch.launcher != "jax" or inventory.rendezvous.backend != "gloo" or inventory.one_machine:
        return False
    chosen = [
        {**network_environment(inventory, node), **job.programs[node.name].env}.get(
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
        )
        for node in inventory.nodes
    ]
    return len(chosen) > 1 and not any(node.gpus for node in inventory.nodes) and set(chosen) <= {None, "gloo"}


def _own_name_outcomes(at: Context) -> dict[str, Outcome]:
    """The outcomes of nodes whose own host name resolves to an address that other nodes have to dial and cannot."""
    order = {"names": [], "hostname": True, "reverse": "127.0.0.1", "targets": []}
    said = at.ask(node_answers.PING_PROGRAM, lambda node: order, timeout_s=15.0)
    problems = {name: answer for name, answer in said.items() if isinstance(answer, Outcome)}
    seen = Observations(at, {name: answer for name, answer in said.items() if not isinstance(answer, Outcome)}, [])
    announced = {node.name: ipaddress.ip_address(gloo_announced_address(seen, node)) for node in seen.nodes}
    for node in seen.nodes:
        finding = own_name_finding(seen, node, interface_helps=False)
        if finding is None:
            continue
        mine = announced[node.name]
        # Of two ranks the one with the larger address dials the other.
        if any(gloo_rank_dials(other, mine) for name, other in announced.items() if name != node.name):
            problems[node.name] = Outcome.failed(node.name, finding)
        else:
            at.say(f"{finding.says}; harmless here: only a node with a larger address would dial it", node.name)
    return problems


def gloo_rank_dials(other: Address, mine: Address) -> bool:
    """Whether a rank that announces `other` dials a rank that announces `mine`, or cannot because gloo does not connect
    two address families. A rank that announces loopback dials itself."""
    return other.version != mine.version or int(other) > int(mine) or other.is_loopback


def _start_keeper(kept: KeptProcesses, attempt: Attempt, node: Node, member: KeptProcess, ready_s: float) -> None:
    """Starts the keeper of one process."""
    session, job, place = kept.at.session(node), attempt.job, member.place
    script = f"{kept.folders[node.name]}/{LAUNCH_SCRIPT_NAME}.sh"
    order = {
        "argv": ["/bin/sh", script, *([str(place.local_rank)] if job.starts_each else [])],
        "folder": kept.folders[node.name],
        "name": place.name,
        "job": kept.at.run.run_id,
        "attempt": attempt.serial,
        "node": node.name,
        "ranks": list(place.ranks),
        "local_rank": place.local_rank,
        "gpus": list(place.gpus),
        "grace_s": job.launch.grace_s,
        "detached": job.launch.detach,
        "each": [one.name for one in place.each],
        "logs": f"{kept.folders[node.name]}/{LAUNCHER_LOGS_FOLDER}",
        "stacks": kept.stacks.get(node.name),
        "barrier": _barrier_argument(kept, attempt, node, member, ready_s) if job.launch.barrier == "file" else None,
    }
    python = str(session.hello["executable"])
    member.remote = session.start(
        [python, "-S", "-E", "-s", f"{session.folder}/keeper.py", json.dumps(order)],
        says=node_answers.KEEPER_MESSAGES,
        on_message=lambda message: kept.news.put((member, message)),
        on_end=lambda: kept.news.put((member, None)),
        grace_s=job.launch.grace_s + KEEPER_KILL_TIMEOUT_S,
        spared=job.launch.detach,
    )


def _barrier_argument(kept: KeptProcesses, attempt: Attempt, node: Node, member: KeptProcess, ready_s: float) -> Facts:
    """The keeper's argument for a file barrier: the shared folder, new for every attempt, in which the nodes meet."""
    shared = attempt.job.launch.barrier_folder or f"{node.workdir}/barrier"
    return {
        "folder": f"{shared}/{kept.at.run.run_id}.{attempt.folder}.{attempt.token}",
        "token": attempt.token,
        "node": node.name,
        "nodes": list(kept.nodes),
        "first": member is kept.on(node.name)[0],
        "owner": 0 in member.place.ranks,
        "timeout_s": ready_s,
    }


def _unready_node_outcome(kept: KeptProcesses, node: str, ready_s: float) -> Outcome:
    """The outcome of a node whose keepers did not say in time that they are ready."""
    members = [m for m in kept.on(node) if m.state == "none"]
    if lost := next((m.lost for m in members if m.lost), None):
        return no_answer_outcome(node, "keeper", lost)
    said = [m.remote.error["text"] for m in members if m.remote and m.remote.error]
    says = f"{node} did not say that it is ready within {ready_s:g} s: {', '.join(m.label for m in members)}"
    return Outcome.failed(node, finding_for("ranks-missing", says, tuple(said[:4]), way="late", node=node))


MIN_START_LEAD_S = 0.3
"""The least seconds between the order to start and the start: the order has to reach every node before."""

LISTENER_LEAD_S = 0.03
"""Seconds by which rank 0 starts earlier than the others, which dial its listener."""

PROCESSES_RUNNING_TIMEOUT_S = 10.0
"""Seconds after the moment of the start within which every process has to run."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How far apart the processes started, in seconds by the controller's clock. `doubt`: the uncertainty of the clock
    comparison, in seconds."""

    seconds: float
    doubt: float

    def __str__(self) -> str:
        return f"within {self.seconds * 1000:.0f} ms (± {self.doubt * 1000:.0f} ms)"


def measure_clocks(kept: KeptProcesses, names: Iterable[str]) -> dict[str, Outcome]:
    """Measures the clock offset of these nodes; the outcomes of the nodes that do not answer, by name."""
    silent: dict[str, Outcome] = {}
    site = kept.at.run.site
    nodes = map(kept.at.inventory.node, names)
    for name, found in site.each(nodes, lambda node: site.sessions[node.name].clock(), timeout_s=10.0).items():
        if isinstance(found, BaseException):
            silent[name] = no_answer_outcome(name, "clock", found)
        else:
            kept.offsets[name] = found
    return silent


def start_all_processes(kept: KeptProcesses) -> Skew | None:
    """Orders all keepers to start, and waits until every process runs or one has failed. How far apart the processes
    started; None when not all of them did."""
    doubt = max(uncertain for _, uncertain in kept.offsets.values())
    moment = time.time() + max(MIN_START_LEAD_S, 4 * doubt + 0.1)
    first = [member for member in kept.members if 0 in member.place.ranks]
    for member in [*first, *(member for member in kept.members if member not in first)]:
        offset, _ = kept.offsets[member.place.node]
        at = moment + offset + (0.0 if member in first else LISTENER_LEAD_S)
        assert member.remote is not None
        try:
            member.remote.feed(f"go {at:.6f}\n".encode())
        except Unreachable as error:
            member.lost = error
    return wait_until_running(kept, moment - time.time() + PROCESSES_RUNNING_TIMEOUT_S)


def wait_until_running(kept: KeptProcesses, timeout_s: float) -> Skew | None:
    """Waits until every process runs or one has failed; how far apart they started, None when not all of them did."""
    ranks = kept.members
    wait_until_done(
        kept, lambda: any(m.failed for m in ranks) or all(m.started is not None or m.over for m in ranks), timeout_s
    )
    starts = [member.started for member in ranks if member.started is not None]
    if len(starts) < len(ranks):
        return None
    return Skew(max(starts) - min(starts), max(doubt for _, doubt in kept.offsets.values()))
