"""What a rank did wrong itself: how it ended, or what it reported of its own failure."""

from __future__ import annotations

import itertools
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from runbook.causes.catalogue import cause_pages, causes_of_kind, finding_for, remedy_from_page
from runbook.checks.ranks.evidence import rank_log_path, rank_progress_text, stack_lines
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Node
from runbook.model.process_end import ProcessEnd
from runbook.model.text_search import compile_bounded
from runbook.model.units import shortened_line
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool
    from runbook.diagnose.judge import Cause
    from runbook.diagnose.scan import Scanner


SIGNAL_LIMITS: Mapping[int | None, str] = {
    signal.SIGXCPU: "CPU time (`ulimit -t`)",
    signal.SIGXFSZ: "file size (`ulimit -f`)",
}
"""The limits behind the signals that the kernel sends when a process exceeds one."""

SCRIPT_STOP_CAUSES = {
    "workdir-missing": ("workdir-not-writable", "the folder that it works in is missing, or closed to this user"),
    "environment-missing": ("activation-failed", "the environment that `activate:` asks for is not there: {activate}"),
    "address-unresolved": ("name-unresolvable", "MASTER_ADDR does not resolve there"),
    "address-loopback": ("master-addr-loopback", "MASTER_ADDR leads to the node itself by its loopback address"),
    "port-taken": ("port-in-use", "the rendezvous port is taken there"),
    "secrets-missing": ("workdir-not-writable", "the file with the secrets beside the launch script cannot be read"),
}
"""Why the launch script stopped, by the script's event: the cause, and what the event means. The cause's page has a
remedy with the event's name, or one for ranks."""

OUT_OF_RESOURCES = compile_bounded(
    r"MemoryError|can't allocate memory|not enough memory|Cannot allocate memory|can't start new thread"
    r"|Resource temporarily unavailable|failed to map segment|thread.* failed",
    re.IGNORECASE,
)
"""What a program prints when a limit of its own refuses it memory or processes."""

LAUNCH_SCRIPT_PREFIX = re.compile(r"^\S*/[\w.-]+\.sh: (?:line )?(?:\d+: )?")
"""How a shell begins its messages about the launch script: with a path that means nothing to the user."""

ERROR_LINE = compile_bounded(r"\berror\b|\w(Error|Exception):|cannot |failed|not found|no such", re.IGNORECASE)
"""A line that says what is wrong, when a program ends without a traceback."""


def own_failure_finding(pool: RankPool, member: RankMember, doing: str) -> Finding | None:
    """The finding for what this rank did wrong itself; None when its failure follows from another's, or when it did not
    fail."""
    if member.aftermath:
        return None
    if member.failure is not None:
        return reported_failure_finding(pool, member, member.failure, doing)
    if not member.over or member.lost:
        return None
    end = ProcessEnd(member.code)
    return exit_finding(pool, member, doing) if end.signal is None else signal_end_finding(pool, member, end, doing)


def exit_finding(pool: RankPool, member: RankMember, doing: str) -> Finding:
    """The finding for a rank that ended with an exit code and without a report of its own."""
    node, tail, code = pool.inventory.node(member.rank.node), pool.lines(member), member.code
    evidence = tail or (f"exit code {code}, nothing printed",)
    if code == 0 and node.activate and "started" not in member.steps:
        says = (
            f"on {node.name} the inventory's activate line exits with code 0 and does not return, so that "
            f"nothing starts after it: {node.activate}"
        )
        return finding_for("activation-failed", says, evidence, way="replaced", activate=node.activate)
    means = cause_of_lines(tail)
    place = innermost_frame_text(tail)
    said = next((line for line in reversed(tail) if place or ERROR_LINE.search(line)), "")
    early = " before its work was done" if code == 0 else ""
    limits = (
        f"; see the limits there: `ulimit -a` in `sh` on {node.name}" if OUT_OF_RESOURCES.search("".join(tail)) else ""
    )
    stray = shadowed_module_remedy(tail, node.name)
    return Finding(
        means.cause if means and not stray else "program-error",
        f"{member.label} exited with code {code}{early} {doing}, "
        f"{rank_progress_text(member)}{': ' if said else ''}{said}{place}",
        stray
        or remedy_for_cause(means, node)
        or f"read its log: `less {shell_word(rank_log_path(pool, member))}`{limits}",
        evidence,
    )


def signal_end_finding(pool: RankPool, member: RankMember, end: ProcessEnd, doing: str) -> Finding:
    """The finding for a rank that a signal ended."""
    tail, when = pool.lines(member), f"{doing}, {rank_progress_text(member)}"
    evidence = (f"exit by {end.signal_text}", *tail)
    if end.signal == signal.SIGKILL and (proof := memory_kill_evidence(pool, member)):
        says = f"{member.label} was killed by the kernel for lack of memory {when}"
        seen = (evidence[0], *proof, *tail)
        return finding_for("rank-killed", says, seen, way="memory", node=member.rank.node)
    if not end.from_outside:
        evidence += stack_lines([member])
    if end.cause == "rank-crashed" and member.said and (means := cause_of_lines([member.said])):
        node = pool.inventory.node(member.rank.node)
        remedy = remedy_for_cause(means, node)
        return Finding(
            means.cause, f"{member.label} crashed ({end.signal_text}) {when}: {member.said}", remedy, evidence
        )
    if end.cause == "rank-crashed" and member.stack:
        when += f", at {member.stack[0].removeprefix('File ')}"
    return signal_finding(end, member.label, when, evidence, member.rank.node, rank_log_path(pool, member))


def signal_finding(end: ProcessEnd, who: str, when: str, evidence: tuple[str, ...], node: str, log: object) -> Finding:
    """The finding for the signal that ended a rank. `who` begins its sentence, and `when` ends it."""
    text, cause = end.signal_text, end.cause
    if end.signal == signal.SIGKILL:
        return finding_for("rank-killed", f"{who} was killed ({text}) {when}", evidence, node=node)
    if end.signal in SIGNAL_LIMITS:
        says = f"{who} reached its limit of {SIGNAL_LIMITS[end.signal]} {when}"
        return finding_for("rank-killed", says, evidence, way="limit")
    if cause == "terminated-from-outside":
        says = f"{who} was ended from outside ({text}) {when}: another process asked it to stop"
        return finding_for("terminated-from-outside", says, evidence, node=node)
    if cause == "terminal-closed":
        return finding_for(
            "terminal-closed", f"{who} got {text} {when}: its terminal or session was closed", evidence, node=node
        )
    says = f"{who} {'crashed' if cause == 'rank-crashed' else 'ended by a signal'} ({text}) {when}"
    way = "bus-error" if end.signal == signal.SIGBUS else "signal"
    return finding_for(cause, says, evidence, way=way, node=node, log=shell_word(log))


def memory_kill_evidence(pool: RankPool, member: RankMember) -> tuple[str, ...]:
    """The proof that the kernel killed the rank for lack of memory, as lines of evidence; empty when there is none."""
    seen = pool.seen.get(member.rank.node)
    before = member.steps.get("started", {}).get("kernel_kills")
    after = seen.get("kernel_kills") if seen else None
    if before is None or after is None or after <= before:
        return ()
    count = after - before
    lines = tuple(str(line).strip() for line in (seen or {}).get("kernel_says", ()))
    many = "es" if count > 1 else ""
    headline = (
        f"oom_kill in /proc/vmstat of {member.rank.node}: {count} process{many} killed for lack of memory since it "
        "started"
    )
    return (headline, *lines[-1:])


def reported_failure_finding(pool: RankPool, member: RankMember, said: Mapping[str, object], doing: str) -> Finding:
    """The finding for a failure that the rank, or its launch script, reported."""
    node = pool.inventory.node(member.rank.node)
    tail = pool.lines(member)
    event = str(said["event"])
    printed = tuple(
        LAUNCH_SCRIPT_PREFIX.sub("", line) for line in tail if "could not run the activate line" not in line
    )
    if event == "activation-failed":
        why = next((line for line in reversed(printed) if ERROR_LINE.search(line)), printed[-1] if printed else "")
        return finding_for(
            "activation-failed",
            f"on {node.name} the inventory's activate line fails with code {said.get('code')}: "
            + (f"{shortened_line(why, 120)} (`{shortened_line(node.activate or '')}`)" if why else str(node.activate)),
            printed or tail,
            node=node.name,
            activate=node.activate,
        )
    if event == "program-missing":
        return finding_for("python-missing", f"{node.name} has no {node.interpreter}", tail, node=node.name)
    if event in SCRIPT_STOP_CAUSES:
        return script_stop_finding(event, f"the launch script stopped on {node.name}", node, tail)
    text = str(said.get("text"))
    trace = said.get("traceback")
    lines = tuple(str(line) for line in trace) if isinstance(trace, list) else ()
    named = cause_pages().get(str(said.get("cause")))  # a rank may name any cause
    named_cause = named.id if named and "rank" in named.remedies else ""
    means = cause_of_lines([*tail, *lines, text]) if named_cause in ("", "program-error") else None
    cause = means.cause if means else named_cause or "program-error"
    remedy = remedy_for_cause(means, node) or remedy_from_page(
        cause, "rank", node=node.name, python=node.interpreter_typed
    )
    if cause == "program-error" and lines:
        remedy = remedy_from_page("program-error", "traceback", log=shell_word(rank_log_path(pool, member)))
    if stray := shadowed_module_remedy((*lines, text), node.name):
        cause, remedy = "program-error", stray
    where = f" ({doing}, {rank_progress_text(member)})" if "imported" in member.steps and not said.get("cause") else ""
    return Finding(
        cause, f"{member.label}: {text}{innermost_frame_text(lines)}{where}", remedy, lines or tail or (text,)
    )


def script_stop_finding(event: str, who: str, node: Node, tail: tuple[str, ...]) -> Finding:
    """The finding for a launch script that stopped with this event of its own; `who` begins the sentence."""
    cause, why = SCRIPT_STOP_CAUSES[event]
    way = event if event in cause_pages()[cause].remedies else "rank"
    return finding_for(cause, f"{who}: {why.format(activate=node.activate)}", tail, way=way, node=node.name)


def remedy_for_cause(means: Cause | None, node: Node) -> str:
    """The remedy for a cause that a rank's own words show; "" when `means` is None."""
    if means is None:
        return ""
    if "rank" in cause_pages()[means.cause].remedies:
        return remedy_from_page(means.cause, "rank", node=node.name, python=node.interpreter_typed)
    return means.remedy or f"`runbook explain {means.cause}` says how to make sure, and what mends it"


TRACEBACK_IMPORT_LINE = re.compile(r"^\s*(?:import|from)\s+(?P<name>\w+)\b")
"""A line in a traceback that imports a top-level module."""

IMPORT_ERROR_MODULE = re.compile(
    r" from '(?P<name>\w+)' \((?:most likely due to a circular import\) \()?(?P<file>/[^()]+)\)"
)
"""The words in which Python names the file of a module that lacks a name."""

INSTALLED_MODULE_PATH = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python[\d.]+/|\.zip/")
"""The part of a path by which an installed Python module is known."""


def shadowed_module_remedy(lines: Sequence[str], node: str) -> str:
    """The remedy when a file that is no part of Python was imported in place of a module of the standard library, or
    when torch was imported from outside the installed packages; "" when these lines of an error show no such file."""
    found = [(match["name"], match["file"]) for line in lines for match in [IMPORT_ERROR_MODULE.search(line)] if match]
    for imports, frame in itertools.pairwise(lines):
        asked, came = TRACEBACK_IMPORT_LINE.match(imports), TRACEBACK_FRAME.search(frame)
        if asked and came and came["file"].endswith((f"/{asked['name']}.py", f"/{asked['name']}/__init__.py")):
            found.append((asked["name"], came["file"]))
    for name, file in found:
        if (name in sys.stdlib_module_names or name == "torch") and not INSTALLED_MODULE_PATH.search(file):
            return remedy_from_page("program-error", "shadowed", name=name, file=file, node=node)
    return ""


TRACEBACK_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
"""A frame of a traceback: file, line and function."""


def innermost_frame_text(lines: tuple[str, ...]) -> str:
    """` at FILE:LINE in FUNCTION`, for the innermost frame that a traceback names; "" when it names none."""
    found = [match for line in lines if (match := TRACEBACK_FRAME.search(line))]
    if not found:
        return ""
    last = found[-1]
    return f" at {last['file']}:{last['line']}" + (f" in {last['function']}" if last["function"] else "")


def cause_of_lines(lines: Iterable[str]) -> Cause | None:
    """The cause that these lines show; None when they prove too little, or show only a consequence."""
    from runbook.diagnose.all_rules import make_scanner  # takes time: only for a rank that failed

    scan = make_scanner()
    scan.feed("rank", ["\n".join(lines).encode()])
    found = certain_cause(scan)
    return None if found and found.cause in causes_of_kind("consequence") else found


def certain_cause(scan: Scanner) -> Cause | None:
    """The cause that the logs surely show; None when it is unsure, or says no more than that something failed."""
    from runbook.diagnose.judge import judge_logs

    found = judge_logs(scan)
    return None if not found or found[0].confidence == "low" or found[0].cause in causes_of_kind("vague") else found[0]
