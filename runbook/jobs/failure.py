"""Why did an attempt fail? Judged by how the first process ended, and by what all logs together say."""

from __future__ import annotations

import functools
import math
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.causes.catalogue import causes_of_kind, finding_for, remedy_from_page
from runbook.checks.context import Facts
from runbook.checks.ranks.own_failure import (
    SCRIPT_STOP_CAUSES,
    certain_cause,
    script_stop_finding,
    shadowed_module_remedy,
    signal_finding,
)
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept_processes import ENDED_STATE, KeptProcess, KeptProcesses, peer_failure_finding, user_stop_finding
from runbook.jobs.logs import log_tail
from runbook.jobs.rendezvous import failed_at_barrier, jax_rendezvous_finding, missed_barrier_finding
from runbook.jobs.seen_processes import LOG_TAIL_BYTES, MIN_COMPUTING_CPU_SHARE, seen_processes
from runbook.jobs.stall import awaited_rank_findings, has_traceback
from runbook.jobs.watch import TORCH_RANK_PREFIX, WatchEnd, exception_at_end
from runbook.model.command_quoting import shell_word
from runbook.model.process_end import ProcessEnd
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding, Outcome, outcomes_from_findings
from runbook.node.journal import OOM_KILLS_INTERVAL_S
from runbook.parsers.python_stacks import FATAL_ERROR_PREFIX, crashed_thread_frames, frame_lines, program_frame

if TYPE_CHECKING:
    from runbook.diagnose.judge import Cause

FAILED_WORKER_LINE = re.compile(rb"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,9})(?!\d)")
"""The line of torchrun's log that names the rank whose end it saw first."""
MAX_LAUNCHER_LOG_BYTES = 1 << 20
"""Bytes of a launcher's log that are searched for that line."""


def failed_worker(kept: KeptProcesses, member: KeptProcess) -> tuple[ProcessSpec, int] | None:
    """The rank whose end a launcher saw first, and its exit code (negative: a signal); None if its log names none."""
    try:
        with kept.log_of(member.place).open("rb") as file:
            found = FAILED_WORKER_LINE.search(file.read(MAX_LAUNCHER_LOG_BYTES))
    except OSError:
        return None
    if found is None or int(found[2]) >= len(member.place.each):
        return None
    return member.place.each[int(found[2])], int(found[1])


def first_failed_launcher(kept: KeptProcesses, first: KeptProcess, failed: Sequence[KeptProcess]) -> KeptProcess:
    """The launcher whose rank failed first. Launchers look at their ranks only now and then, so the launcher that ended
    first need not be that one. A rank that a signal ended counts before `first`: the signal does not follow from
    another rank's error, while an error often follows from the signal."""
    for member in failed:
        worker = failed_worker(kept, member) if member.place.each else None
        if worker and worker[1] < 0 and worker[1] != -signal.SIGTERM:
            return member
    return first


COLLECTIVE_TIMEOUT_CAUSES = ("rank-behind", "collective-stall-uniform")
"""Causes that logs show if ranks waited for others until their own time limit."""

MAX_PEER_LOSS_DELAY_S = 120.0
"""The most seconds between a peer's end and the failure that it explains: a collective fails soon after a peer has
closed its connections."""

RANK_TOO_LARGE = re.compile(r"rank < size\. (?P<rank>\d{1,6}) vs (?P<world>\d{1,6})")
"""Gloo's message about a rank that is too large for its world."""

TIMEOUT_EXIT_CODE = 124
"""The exit code of coreutils' `timeout` if it has ended its command."""

TORCH_RENDEZVOUS_FILE = re.compile(r"/torch/distributed/rendezvous\.py")
"""A file in the traceback of a rank that gave up before it had met the other ranks."""

HIDDEN_EXCEPTION_TEXT = "ended with code 0, and the last that it wrote is an exception"
"""In words, the end of a process whose exit code hides an exception."""

CONNECTION_RESET_EXCEPTION = re.compile(
    r"^[\w.]*(?:Connection(?:Reset|Aborted|)Error|ProtocolError)\b.*(?:reset by peer|Connection aborted)", re.I
)
"""An exception of Python's own, raised when a server that the program itself talks to, such as a file server, is
gone."""

MAX_LAST_OUTPUT_AGE_S = 5.0
"""The most seconds between the last output of a process and its end for that output to explain the end."""

MAX_LOST_OUTPUT_AGE_S = 30.0
"""The same limit for a process that another rank lost: an interpreter may take long to end on a busy machine."""

MAX_INTERPRETER_EXIT_S = 10.0
"""Seconds that an interpreter may take to end after its program has closed its connections, on a busy machine."""

MAX_TAIL_LINES = 8
"""The most lines at the end of a log that are shown as evidence."""
UNINFORMATIVE_LINE_PREFIXES = ("\x1e", "-" * 20, "=" * 20, "For simplicity, JAX has removed its internal frames")
"""Beginnings of lines that say nothing about the failure: our own events, rulers, and JAX's note below an exception."""


def judge_attempt(kept: KeptProcesses, end: WatchEnd, frozen: Mapping[str, Facts]) -> list[Outcome]:
    """One outcome a node: the node at fault fails, the others are unknown. `frozen`: what the surviving ranks did right
    after the failure, by node."""
    first = end.first
    assert first is not None
    first = first_failed_launcher(kept, first, [member for member in kept.members if member.failed])
    first = _killed_peer(kept, first) or first
    if first.by_user:  # `runbook stop` was typed elsewhere, while this run held the job
        return [Outcome.unknown(name, user_stop_finding(kept)) for name in kept.nodes]
    node, finding = first.place.node, process_end_finding(kept, first, frozen)
    hidden = _hidden_exception_finding(kept, first)
    logged = None if hidden or failed_at_barrier(first) else _cause_in_logs(kept, first, kept.members)
    if failed_at_barrier(first):
        node, finding = missed_barrier_finding(kept, first)
    elif hidden:
        node, finding = hidden
    elif smaller := _smaller_world_finding(kept, first):
        return _attempt_outcomes(kept, first, {name: [smaller] for name in kept.nodes})
    elif logged and logged.cause in COLLECTIVE_TIMEOUT_CAUSES and first.raised:
        return _attempt_outcomes(kept, first, _collective_timeout_findings(kept, logged, first, finding, frozen))
    elif logged and _has_differing_calls(logged) and _logs_say_more(logged, finding, first):
        _, finding = _finding_of_logs(kept, logged, first, finding)
        says = f"ranks give different sizes or types to one call, or make different calls: {finding.says}"
        finding = finding_for("mismatched-collectives", says, finding.evidence, way="sizes")
        found = {name: [_unlike_file_finding(one, finding)] for name, one in kept.unlike.items()}
        return _attempt_outcomes(kept, first, found or {name: [finding] for name in kept.nodes})
    elif logged and logged.cause not in causes_of_kind("consequence") and _logs_say_more(logged, finding, first):
        node, finding = _finding_of_logs(kept, logged, first, finding)
    elif first.gave_up is None and (met := jax_rendezvous_finding(kept, first, frozen)):
        node, finding = met
    elif _is_consequence(logged) or (first.raised and _is_consequence(_cause_in_logs(kept, first, [first]))):
        node, finding = (
            _early_end_finding(kept, first) or _closed_connections_finding(kept, first, frozen) or (node, finding)
        )
    return _attempt_outcomes(kept, first, {node: [finding]})


def _unlike_file_finding(unlike: Finding, differ: Finding) -> Finding:
    """The finding `unlike` about a module that differs on a node, with `differ`, the calls that differ because of it,
    added."""
    told = replace(unlike, says=f"{unlike.says}, and {differ.says}")
    return told.with_evidence(*differ.evidence)


def _attempt_outcomes(kept: KeptProcesses, first: KeptProcess, found: Mapping[str, Sequence[Finding]]) -> list[Outcome]:
    """One outcome a node; the findings say as evidence how the other processes ended. If the job only lost a node, all
    outcomes are unknown."""
    more = (*_other_process_ends(kept, first), f"logs: {kept.logs.folder}")
    proven = {node: [one.with_evidence(*more) for one in each] for node, each in found.items()}
    guilty = tuple(proven)
    waited = peer_failure_finding(guilty)
    if first.lost and all(one.cause in (first.lost.cause,) or one.cause.startswith("ssh") for one in proven[guilty[0]]):
        return [Outcome.unknown(name, *proven.get(name, [waited])) for name in kept.nodes]
    return outcomes_from_findings(kept.nodes, proven, waited)


def _smaller_world_finding(kept: KeptProcesses, first: KeptProcess) -> Finding | None:
    """The finding if gloo refuses the rank of a process as too large; else None. The launch gave the process that rank,
    so the program, which is the same on all nodes, gave torch a smaller world than the job has."""
    match = RANK_TOO_LARGE.search("\n".join(_output_tail(kept, first.place)))
    if match is None or int(match["rank"]) not in first.place.ranks or int(match["world"]) >= kept.ranks:
        return None
    says = f"the program gives torch a world of {match['world']}, and the job has {kept.ranks} ranks: {match[0]}"
    return finding_for("world-size-mismatch", f"{says} ({first.label})", _output_tail(kept, first.place), way="program")


def _collective_timeout_findings(
    kept: KeptProcesses, logged: Cause, first: KeptProcess, finding: Finding, frozen: Mapping[str, Facts]
) -> dict[str, list[Finding]]:
    """Findings by node about the ranks that others waited for until they gave up: the ranks that were seen elsewhere,
    else the ranks that the logs name. If there are none, all nodes get the same finding."""
    gave_up = f"{first.label} gave up waiting after {_run_time_text(first)}: {logged.evidence[0].line.shown}"
    if found := awaited_rank_findings(kept, frozen, gave_up):
        return found
    _, finding = _finding_of_logs(kept, logged, first, finding)
    late = {int(text) for hit in logged.evidence for text in re.findall(r"\d{1,6}", hit.groups.get("late", ""))}
    named = [member.place.node for member in kept.members if late & set(member.place.ranks)]
    return {node: [finding] for node in dict.fromkeys(named or kept.nodes)}


def _has_differing_calls(logged: Cause) -> bool:
    """Whether the logs say that the calls of ranks differ. The rank that says so, or crashes from it, need not be the
    one that differs."""
    by_size = any("op.preamble.length" in hit.line.shown for hit in logged.evidence)  # gloo received too much
    return logged.cause == "mismatched-collectives" or by_size


def _killed_peer(kept: KeptProcesses, first: KeptProcess) -> KeptProcess | None:
    """The process that was killed, if `first` only raised an exception that may follow from the loss of that peer; else
    None. Of two ends the later one can be recorded or reported first: nodes are busy, and clocks agree only roughly. By
    now all processes have ended, so a killed one is known, however late its report came."""
    from runbook.diagnose.judge import PROGRAM_ERRORS  # imported only for a job that failed, since it takes time

    if not first.raised or "".join(_output_tail(kept, first.place)[-1:]).startswith(tuple(PROGRAM_ERRORS)):
        return None
    killed = [member for member in kept.members if member.killed]
    return min(killed, key=lambda member: member.ended or 0.0, default=None)


def process_end_finding(kept: KeptProcesses, member: KeptProcess, frozen: Mapping[str, Facts] | None = None) -> Finding:
    """The finding from how a process ended; of its logs, only the last lines count. `frozen`: what the nodes saw after
    the end."""
    node = member.place.node
    if member.lost is not None:
        lost = member.lost
        return Finding(lost.cause, f"{node} was lost while {member.label} ran: {lost.says}", lost.remedy, lost.evidence)
    if member.by_user:
        return user_stop_finding(kept)
    if member.gave_up is not None:
        says = (
            f"{member.label} raised and did not end, as JAX waits for the other processes at its exit: {member.gave_up}"
        )
        seen = _output_tail(kept, member.place)
        return finding_for(
            "program-error", says, seen, way="lingers", log=shell_word(_tail_log_path(kept, member.place))
        )
    if member.stop is not None:
        return _script_stop_finding(kept, member, member.stop)
    if member.keeper_gone and member.restarted is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(member.restarted))
        says = f"{node} was restarted while {member.label} ran: it is up since {since}"
        return finding_for("terminated-from-outside", says, way="restarted", node=node)
    if member.keeper_gone:
        says = f"the keeper of {member.label}, a process of runbook, was killed, and the rank ended with it"
        return finding_for("terminated-from-outside", says, way="keeper", node=node)
    place, code = member.place, member.code
    if place.each and code is not None and code > 0:
        place, code = failed_worker(kept, member) or (place, code)
    tail = _output_tail(kept, place)
    if code is None:
        why = str(member.journal.get("why") or "it was never started")
        says = f"{member.label} ended before it was started: {why}"
        return finding_for("terminated-from-outside", says, tail, way="unknown", node=node)
    end = ProcessEnd(code)
    if end.signal is None:
        if (no_room := member.journal.get("no_room")) and not last_exception(kept, member, place):
            says = f"{place.label} exited with code {code} after {_run_time_text(member)}, and "
            says += f"its output cannot be written on {node}: {no_room}"
            seen = (f"the journal beside its logs: {no_room}", *tail)
            return finding_for("disk-full", says, seen, way="rank", node=node)
        says = (
            f"{place.label} exited with code {code} after {_run_time_text(member)}: "
            f"{tail[-1] if tail else 'it printed nothing'}"
        )
        if code == TIMEOUT_EXIT_CODE:
            says += f"; {code} is what `timeout` exits with when the time that it was given is over"
            return finding_for("program-error", says, tail, way="timeout")
        if tail and CONNECTION_RESET_EXCEPTION.search(TORCH_RANK_PREFIX.sub("", tail[-1])):
            return finding_for("tcp-connection-lost-midrun", says, tail, way="program")
        if stray := shadowed_module_remedy(tail, node):
            return Finding("program-error", says, stray, tail)
        return finding_for("program-error", says, tail, log=shell_word(_tail_log_path(kept, place)))
    when = f"after {_run_time_text(member)}"
    log = log_tail(kept.log_of(place), LOG_TAIL_BYTES)
    if not end.from_outside and (frames := crashed_thread_frames(log)):
        when, tail = f"{when}, in {program_frame(frames)}", _last_lines(log.rpartition(FATAL_ERROR_PREFIX)[0])
        tail = (*tail, *frame_lines(place.label, frames))
    memory = ((frozen or {}).get(node) or {}).get("kernel_says", ()) if end.signal == signal.SIGKILL else ()
    evidence = (*map(str, memory[-2:]), *tail)
    if end.signal == signal.SIGKILL and (kills := int(member.journal.get("group_kills") or 0)):
        says = f"{place.label} was killed by the kernel for lack of memory {when}"
        seen = (f"oom_kill of its control group: {_kills_text(kills)}", *evidence)
        return finding_for("rank-killed", says, seen, way="kernel", node=node)
    if end.signal == signal.SIGKILL and (kills := int(member.journal.get("node_kills") or 0)):
        # The process's own control group reports no kill. The killed process may be a child in another group.
        evidence = (f"oom_kill in /proc/vmstat of {node}: {_kills_text(kills)}: perhaps it was one of them", *evidence)
    return signal_finding(end, place.label, when, evidence, node, _tail_log_path(kept, place))


def _kills_text(kills: int) -> str:
    lately = f"in the last {2 * OOM_KILLS_INTERVAL_S:.0f} s before it ended"
    return f"{kills} process{'es' * (kills > 1)} killed for lack of memory {lately}"


def _script_stop_finding(kept: KeptProcesses, member: KeptProcess, said: Mapping[str, object]) -> Finding:
    """The finding that says why the launch script stopped before it started the program. `said`: the script's event."""
    node = kept.at.inventory.node(member.place.node)
    event, tail = str(said["event"]), _output_tail(kept, member.place)
    if event == "activation-failed":
        says = f"on {node.name} the inventory's activate line fails with code {said.get('code')}: {node.activate}"
        return finding_for("activation-failed", says, tail, way="job", node=node.name, activate=node.activate)
    if event == "program-missing":
        says = tail[-1] if tail else f"{node.name} does not have the program that the launch script starts"
        return finding_for("program-error", says, tail, way="not-found")
    if event not in SCRIPT_STOP_CAUSES:
        return finding_for(
            "program-error", f"{member.label} did not start: the launch script stopped: {event}", tail, way="unread"
        )
    return script_stop_finding(event, f"{member.label} did not start", node, tail)


def _is_consequence(told: Cause | None) -> bool:
    """Whether the cause is only a consequence: another rank had ended."""
    return told is not None and told.cause in causes_of_kind("consequence")


def _cause_in_logs(kept: KeptProcesses, first: KeptProcess, members: Sequence[KeptProcess]) -> Cause | None:
    """The cause that the logs of these processes together show; None if they show only that something failed."""
    from runbook.diagnose.all_rules import make_scanner  # imported only for a job that failed, since it takes time

    scan = make_scanner()
    for member in sorted(members, key=lambda member: member is not first):
        for place in (*member.place.each, member.place):
            for end in ("err", "out"):
                path = kept.log_of(place, end)
                if path.is_file() and path.stat().st_size:
                    with path.open("rb") as file:
                        scan.feed(str(path), iter(functools.partial(file.read, 1 << 20), b""), (place.rank, place.node))
    return certain_cause(scan)


def _well_ended_peers(kept: KeptProcesses, first: KeptProcess, *, later_s: float) -> list[KeptProcess]:
    """The processes that ended well and by themselves, from MAX_PEER_LOSS_DELAY_S before to `later_s` after the error
    of `first`."""
    if not first.raised or first.ended is None:
        return []
    before = [member for member in kept.members if member.state == ENDED_STATE and member.code == 0]
    before = [member for member in before if not member.journal.get("why") and member.ended is not None]
    return [member for member in before if -later_s <= first.ended - (member.ended or 0.0) <= MAX_PEER_LOSS_DELAY_S]


def _hidden_exception_finding(kept: KeptProcesses, first: KeptProcess) -> tuple[str, Finding] | None:
    """The node and the finding about a process that ended before `first` with an exception, and with exit code 0; else
    None."""
    for one in _well_ended_peers(kept, first, later_s=0.0):
        if exception := last_exception(kept, one, one.place, MAX_LOST_OUTPUT_AGE_S):
            says = (
                f"{one.label} {HIDDEN_EXCEPTION_TEXT}: {exception}; {first.label} lost it after {_run_time_text(first)}"
            )
            return one.place.node, finding_for("program-error", says, _output_tail(kept, one.place), way="hidden")
    return None


def _early_end_finding(kept: KeptProcesses, first: KeptProcess) -> tuple[str, Finding] | None:
    """The node and the finding about processes that ended well before `first` lost them in a collective, or up to
    MAX_INTERPRETER_EXIT_S later, since a process closes its connections some seconds before it ends. If most ranks had
    ended, the node is that of `first`. None if no process had ended."""
    before = _well_ended_peers(kept, first, later_s=MAX_INTERPRETER_EXIT_S)
    if not before:
        return None
    if gone := next((member for member in before if member.journal.get("swept")), None):
        says = (
            f"{gone.label} ended with code 0 after {_run_time_text(gone)} and left "
            f"processes running ({gone.journal['swept']}), "
            f"which were ended after its grace; {first.label} lost it then"
        )
        return gone.place.node, finding_for("program-error", says, _output_tail(kept, first.place), way="background")
    earliest = min(before, key=lambda member: member.ended or 0.0)
    names = ", ".join(member.label for member in before[:4])
    says = (
        f"{names} ended with code 0, the first after {_run_time_text(earliest)}, and "
        f"{first.label} was still in a call with it, "
        f"and lost it after {_run_time_text(first)}"
    )
    most = 2 * sum(len(member.place.ranks) for member in before) > kept.ranks
    node = (first if most else earliest).place.node
    return node, finding_for("mismatched-collectives", says, _output_tail(kept, first.place), way="left")


def _closed_connections_finding(
    kept: KeptProcesses, first: KeptProcess, frozen: Mapping[str, Facts]
) -> tuple[str, Finding] | None:
    """The node and the finding about a rank that lived, had raised nothing, had no connection any more and slept
    outside of a collective when `first` had lost it: it closed its connections, or became another program. Else None.
    """
    for one in seen_processes(kept, frozen) if first.raised else ():
        slept = one.state == "S" and one.cpu < MIN_COMPUTING_CPU_SHARE and not one.together
        if one.connections != 0 or not slept or has_traceback(kept, kept.place_of(one.label)):
            continue
        if one.frames and TORCH_RENDEZVOUS_FILE.search(log_tail(kept.log_of(first.place), LOG_TAIL_BYTES)):
            says = (
                f"{one.label} had not come to the rendezvous and slept {one.place}, when {first.label} gave up waiting "
                f"for it after {_run_time_text(first)}"
            )
            seen = (*one.shown(), *_output_tail(kept, first.place))
            return one.node, finding_for(
                "ranks-missing", says, seen, way="hangs", node=one.node, pid=shell_word(one.pid)
            )
        where = f"slept {one.place}" if one.frames else f"had become another program (process {one.pid}, {one.comm})"
        says = (
            f"{one.label} had closed its connections to the others and {where}, when {first.label} was still in a call "
            f"with it, and lost it after {_run_time_text(first)}"
        )
        return one.node, finding_for(
            "mismatched-collectives", says, (*one.shown(), *_output_tail(kept, first.place)), way="left"
        )
    return None


def _logs_say_more(logged: Cause, finding: Finding, first: KeptProcess) -> bool:
    """Whether the logs say more about the failure than the way in which the first process ended."""
    if first.lost is not None or first.keeper_gone or first.stop is not None:
        return False
    if finding.cause in ("rank-killed", "terminated-from-outside", "terminal-closed"):
        return False  # the process was ended from outside: the other ranks' logs show only the consequences
    return finding.cause != logged.cause


def _finding_of_logs(kept: KeptProcesses, logged: Cause, first: KeptProcess, finding: Finding) -> tuple[str, Finding]:
    """The node and the finding for a cause that the logs show; `finding` says how the first process ended."""
    node = logged.node if logged.node in kept.nodes else None
    if node is None and logged.rank is not None:
        node = next((m.place.node for m in kept.members if logged.rank in m.place.ranks), None)
    lines = tuple(f"{Path(hit.line.source).name}:{hit.line.number}: {hit.line.shown}" for hit in logged.evidence[:6])
    remedy = logged.remedy or remedy_from_page(logged.cause)
    return node or first.place.node, Finding(logged.cause, f"{logged.says} ({finding.says})", remedy, lines)


def _other_process_ends(kept: KeptProcesses, first: KeptProcess) -> list[str]:
    """Lines that say how the other processes ended, as a consequence of the first."""
    lines = []
    for member in kept.members:
        if member is first or not member.failed or member.state != "ended":
            continue
        after = f" {seconds_text(max(0.0, member.ended - first.ended))} later" if member.ended and first.ended else ""
        how = "ended by runbook" if member.by_runbook else f"exit {member.code}"
        lines.append(f"then {member.label}: {how}{after}")
    return lines[:8]


def _output_tail(kept: KeptProcesses, place: ProcessSpec) -> tuple[str, ...]:
    """The last lines that a process wrote to stderr; if there are none, to stdout."""
    return _last_output(kept, place)[1]


def _tail_log_path(kept: KeptProcesses, place: ProcessSpec) -> Path:
    """The path of the log that holds the lines of `_output_tail`."""
    return _last_output(kept, place)[0]


def _last_output(kept: KeptProcesses, place: ProcessSpec) -> tuple[Path, tuple[str, ...]]:
    """The path of the log that has lines, of stderr or else of stdout, and its last lines."""
    for end in ("err", "out"):
        path = kept.log_of(place, end)
        if lines := _last_lines(log_tail(path, 8192)):
            return path, lines
    return kept.log_of(place), ()


def last_exception(
    kept: KeptProcesses, member: KeptProcess, place: ProcessSpec, within_s: float = MAX_LAST_OUTPUT_AGE_S
) -> str:
    """The exception of a traceback that is the last output to stderr or stdout of `place`, which is the process or one
    of its ranks, written at most `within_s` before the process ended; empty if there is none."""
    for end in ("err", "out"):
        path = kept.log_of(place, end)
        late = kept.written.get(path.name, -math.inf) >= (member.ended or 0.0) - within_s
        if late and (exception := exception_at_end(log_tail(path, LOG_TAIL_BYTES))):
            return exception
    return ""


def hidden_exception_texts(kept: KeptProcesses, node: str) -> list[str]:
    """Sentences about processes of a node that ended with code 0 although their last output is an exception."""
    voices = [(member, one) for member in kept.on(node) if member.code == 0 for one in member.place.voices]
    told = ((one.label, last_exception(kept, member, one)) for member, one in voices)
    return [
        f"{label} {HIDDEN_EXCEPTION_TEXT}: {exception}; `python … | tee` hides an exit code without `set -o pipefail`"
        for label, exception in told
        if exception
    ]


def _last_lines(text: str) -> tuple[str, ...]:
    """The last MAX_TAIL_LINES lines of a text that say something."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(UNINFORMATIVE_LINE_PREFIXES)]
    return tuple(lines[-MAX_TAIL_LINES:])


def _run_time_text(member: KeptProcess) -> str:
    """In words, how long a process ran."""
    if member.started is None or member.ended is None:
        return "an unknown time"
    return seconds_text(member.ended - member.started)
