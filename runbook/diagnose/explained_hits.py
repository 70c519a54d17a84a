"""Hits that other lines explain: drops those that are answered, survived or expected, and gives some the speaker or the
sign that the lines above them show."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runbook.diagnose.rule_types import MAX_TRACEBACK_LINES, Hit, Line, has_line_above, line_numbers
from runbook.files.node_sets import count_names, expand
from runbook.model.units import parse_number, parse_small_number

MAX_CLIENT_CALL_LINES = 16  # the most lines of a traceback from the frame of a web client to the error of its socket
MAX_EXIT_LINES = 12  # the most lines of a process between an exception that nothing caught and its end
MAX_CANCELLED_LINES = 400  # the most lines that the tasks of a cancelled step print as they end
MAX_CANCELLED_S = 1800.0  # no site gives tasks longer than that to end
MAX_CLOSING_LINES = 12  # the most lines that a worker of Dask or Spark prints from its order to end to its end
MAX_SUMMARY_LINES = 6  # the most lines of one process in torchrun's summary
UNCAUGHT_C10_EXCEPTION = re.compile(r"\bterminate called\b.*\bc10::")
STEP_ENDED = re.compile(
    r"^(?:\[[^\]]{1,60}\] )?(?:srun: Job step aborted|\S+: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT )"
)
"""The beginning of a line in which Slurm says that it ends a step."""
TASK_KILLED = re.compile(r"srun: error: \S+ tasks? \S+ Killed")
HYDRA_BANNER = re.compile(r"=\s+KILLED BY SIGNAL: \d")
"""A line of the banner of Hydra, the process manager of MPICH and Intel MPI."""
HYDRA_EXIT = re.compile(r"=\s+EXIT (?:STATUS|CODE): (?!9\b)[1-9]")
"""The line of that banner about a process that ended by itself, with an error."""
_HELPERS = (
    r"(?:nvidia-smi|dcgmi|rocm-smi|tensorboard|nvtop|htop|gpustat|[iv]ostat|mpstat|dstat|sar|tail|sleep|watch"
    r"|node_exporter|dcgm-exporter)"
)
KILLED_HELPER = re.compile(
    r"(?:\bKilled +|\b(?:kill(?:ed)?|reaped) process \d+ \(|\boom-kill:.{0,2000},task=)(?:\S{0,200}/)?"
    + _HELPERS
    + r"(?![\w.-])|(?<![\w.-])"
    + _HELPERS
    + r" invoked oom-killer",
    re.IGNORECASE,
)
"""A line about the end, by SIGKILL, of a program that only looks on."""
PASSED_CHECK = re.compile(
    r"(?:[\s:|=]{1,40}0){1,64}[\s|,]{1,40}(?:ok|pass(?:ed)?|good|healthy)[\s|]{0,10}\Z"
    r"|\((?:ok|pass(?:ed)?)\)\s{0,10}\Z|\b(?:none|nothing) found\s{0,10}\Z"
    r"|\b(?:raised|handled|fail\w{0,3}) as expected\b",
    re.IGNORECASE,
)
"""A line of a report of checks that passed: its counts are all 0, or it says so."""
CLOSED_IN_TURN = re.compile(r"\bCommClosedError\b|\bRECEIVED SIGNAL TERM\b")
"""What a worker of Dask, or an executor of Spark, says when its cluster is closed."""
NODE_NAMES = re.compile(r"[\w.-]{1,80}(?:\[[\d,-]{1,80}\])?")
"""Words that may be names of nodes, pods or plugins; Slurm folds those of several nodes."""
MAX_FOLDED_NODES = 1_000  # the most nodes of one line that are looked for one by one
SAID_BY_CONTROLLERS = re.compile(
    r"\bNodes? \S+ not responding|\bslurm_\w+: |^\S+ +Warning +\w+ +pod/|\bregister device plugin\b|\bcontact Kubelet\b"
)
"""Lines in which Slurm's controller, an event of Kubernetes, or the device plugin says that something is not there."""
NO_ANSWER_SIGNS = frozenset(
    """slurm-silent nodes-held-back failed trouble says-failed warned refused
    waits-for-machine waits-for-image waits-for-container""".split()
)
"""Signs of lines that may say nothing worse than that something does not answer yet, or does not start."""
ENDED_FROM_OUTSIDE = ("cancelled", "step-cancelled", "told-to-end", "nodes-taken-back")
"""Signs of lines about a process that another program ended."""
BEGINS_ANEW = ("all-registered", "job-starts-anew")
"""Signs of lines with which the ranks of another attempt begin."""
SAID_BY_SLURM = (*ENDED_FROM_OUTSIDE, "task-exited", "node-failure", "nodes-held-back")
"""Signs of lines that Slurm itself prints or that sacct lists, after it has ended a job as well."""
LinePlace = tuple[str, str, int]
"""Source, speaker, and number of a line."""


def without_explained_hits(hits: Sequence[Hit]) -> tuple[list[Hit], set[tuple[str, int]]]:
    """The hits that mean what their lines say, and the places of lines that mean nothing even as a run's last words:
    exceptions that Python ignored, the end of programs that only looked on, steps of a workflow that were retried."""
    left = _without_retried_steps(_without_killed_helpers(_without_ignored_exceptions(hits)))
    ignored = {hit.line.place for hit in hits} - {hit.line.place for hit in left}
    for drop in (
        _without_passed_checks,
        _without_exit_crashes,
        _without_answered_lookups,
        _without_completed_counts,
        _without_later_logins,
        _without_hydra_kills,
        _without_kills_of_ended_steps,
        _without_cluster_closing,
        _without_found_providers,
        _without_effects_of_cancelling,
        _without_survived_attempts,
        _without_what_works_again,
        _with_failed_fetches,
    ):
        left = drop(left)
    return [*_with_summary_speakers(left)], ignored


def _without_ignored_exceptions(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those of tracebacks below `Exception ignored in`: they come from finalizers, which run as a
    process exits and end nothing."""
    if not any(hit.sign == "ignored-exception" for hit in hits):
        return list(hits)
    told: dict[str, set[LinePlace]] = defaultdict(set)
    for hit in hits:
        told[hit.sign].add((*hit.line.voice, hit.line.number))
    ignored = {place for start in told["ignored-exception"] for place in _ignored_traceback(start, told)}
    return [hit for hit in hits if (*hit.line.voice, hit.line.number) not in ignored]


def _without_exit_crashes(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without crashes of a process that torch's own C++ exception is ending: such a process may get any signal
    on its way out."""
    ended = line_numbers(
        [hit for hit in hits if hit.sign == "aborted" and UNCAUGHT_C10_EXCEPTION.search(hit.line.text)]
    )
    return [hit for hit in hits if hit.sign != "crashed" or not has_line_above(hit, ended, MAX_EXIT_LINES)]


def _without_hydra_kills(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without the SIGKILL by which Hydra ends an application's other processes, if one process crashed or
    ended with an error."""
    failed = any(
        (hit.sign == "crashed" and HYDRA_BANNER.search(hit.line.text)) or HYDRA_EXIT.search(hit.line.text)
        for hit in hits
    )
    return [hit for hit in hits if not (failed and hit.sign == "killed" and HYDRA_BANNER.search(hit.line.text))]


def _without_kills_of_ended_steps(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without the tasks that Slurm killed because their step was over: srun tells first why a step ends, and
    then how its other tasks ended."""
    ended: dict[str, int] = {}
    for hit in hits:
        if STEP_ENDED.match(hit.line.text):
            ended[hit.line.source] = min(hit.line.number, ended.get(hit.line.source, hit.line.number))

    def follows(hit: Hit) -> bool:
        return (
            hit.sign == "killed"
            and hit.line.number >= ended.get(hit.line.source, hit.line.number + 1)
            and bool(TASK_KILLED.search(hit.line.text))
        )

    return [hit for hit in hits if not follows(hit)]


def _without_killed_helpers(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without lines about programs that were killed and only looked on, such as TensorBoard."""
    return _without_lines_of(KILLED_HELPER, hits)


def _without_retried_steps(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those in rows of Argo's about failed steps of a workflow that has succeeded."""
    succeeded = {hit.line.source for hit in hits if hit.sign == "workflow-succeeded"}
    rows = {hit.line.place for hit in hits if hit.sign == "workflow-step-failed" and hit.line.source in succeeded}
    return [hit for hit in hits if hit.line.place not in rows]


def _without_completed_counts(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without counts of those who have joined, if a later count is complete, or if it is no count of some."""
    complete = {hit.line.source: hit.line.number for hit in hits if hit.sign == "all-joined"}

    def counts(hit: Hit) -> bool:
        if hit.sign != "too-few-joined":
            return True
        some = parse_number(hit.groups["came"]) < parse_number(hit.groups["wanted"])
        return some and hit.line.number > complete.get(hit.line.source, 0)

    return [hit for hit in hits if counts(hit)]


def _without_passed_checks(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those in lines about checks that passed, which name what they looked for."""
    return _without_lines_of(PASSED_CHECK, hits)


def _without_lines_of(pattern: re.Pattern[str], hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those in lines that the pattern is found in; lines with several hits are searched once."""
    found = {text for text in {hit.line.text for hit in hits} if pattern.search(text)}
    return [hit for hit in hits if hit.line.text not in found]


def _without_cluster_closing(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without what a cluster of Dask or Spark prints as its scheduler or driver closes it: workers find the
    scheduler gone, executors are told to end, and a worker that takes too long is killed by its nanny."""
    kills, closes = (
        line_numbers([hit for hit in hits if hit.sign == sign]) for sign in ("nanny-kills", "scheduler-closes")
    )
    return [
        hit
        for hit in hits
        if not (hit.sign == "killed" and has_line_above(hit, kills, MAX_CLOSING_LINES))
        and not (CLOSED_IN_TURN.search(hit.line.text) and has_line_above(hit, closes, MAX_CLOSING_LINES))
    ]


def _without_found_providers(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those about a provider of libfabric that is missing on a node where another was found."""
    found = {(hit.line.source, hit.line.node) for hit in hits if hit.sign == "provider-found"}
    return [hit for hit in hits if hit.sign != "no-provider" or (hit.line.source, hit.line.node) not in found]


def _without_effects_of_cancelling(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those of tasks that end, after Slurm has told why it ends the job: whatever they report then
    follows from that, until the ranks of another attempt have met, or so much later that it is another attempt's."""
    ended: dict[str, Line] = {}
    begun: dict[str, int] = {}
    for hit in hits:
        if hit.sign == "step-cancelled" and " DUE TO " in hit.line.text:
            ended.setdefault(hit.line.source, hit.line)
        if hit.sign in BEGINS_ANEW and hit.line.number > ended.get(hit.line.source, hit.line).number:
            begun.setdefault(hit.line.source, hit.line.number)

    def follows(line: Line) -> bool:
        end = ended.get(line.source, line)
        late_s = line.when - end.when if line.when is not None and end.when is not None else 0.0
        return (
            0 < line.number - end.number <= MAX_CANCELLED_LINES
            and late_s <= MAX_CANCELLED_S
            and line.number < begun.get(line.source, line.number + 1)
        )

    return [hit for hit in hits if hit.sign in SAID_BY_SLURM or not follows(hit.line)]


def _without_what_works_again(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those that say nothing worse than that a node, a pod or a plugin does not answer or start, if a
    later line shows it at work."""
    works: dict[str, dict[str, int]] = {}
    for hit in hits:
        if hit.sign == "works-again":
            works.setdefault(hit.line.source, {})[hit.groups["name"]] = hit.line.number

    def works_again(line: Line) -> bool:
        later = {name for name, number in works.get(line.source, {}).items() if number > line.number}
        if not later or not SAID_BY_CONTROLLERS.search(line.text):
            return False
        return any(later.issuperset(_expanded_names(word)) for word in NODE_NAMES.findall(line.text))

    return [hit for hit in hits if hit.sign not in NO_ANSWER_SIGNS or not works_again(hit.line)]


def _expanded_names(word: str) -> list[str]:
    """The names that a word such as `g[011-012]` stands for; the word itself if it is none of the kind, or stands for
    very many."""
    return expand(word) if 1 < count_names(word) <= MAX_FOLDED_NODES else [word]


def _without_survived_attempts(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those about the end of an attempt after which all ranks were started anew."""
    begun: dict[str, int] = {}
    for hit in hits:
        if hit.sign in BEGINS_ANEW:
            begun[hit.line.source] = max(hit.line.number, begun.get(hit.line.source, 0))
    return [
        hit for hit in hits if hit.sign not in ENDED_FROM_OUTSIDE or hit.line.number > begun.get(hit.line.source, 0)
    ]


def _ignored_traceback(start: LinePlace, told: Mapping[str, set[LinePlace]]) -> Iterator[LinePlace]:
    """The places of this line and of the one traceback that begins right below it; none if its end is not found."""
    source, who, at = start
    for line_number in range(at + 1, at + MAX_TRACEBACK_LINES):
        place = (source, who, line_number)
        if (place in told["traceback"]) != (line_number == at + 1):
            return
        if place in told["exception"] or place in told["system-exit"]:
            yield from ((source, who, line) for line in range(at, line_number + 1))
            return


def _with_failed_fetches(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, in which a failed lookup below the frames of a web client is `fetched-in-vain`: it looked up a name of
    the web, not of the job."""
    frames = line_numbers([hit for hit in hits if hit.sign == "fetching"])

    def fetches(hit: Hit) -> bool:
        return hit.line.text.startswith("socket.gaierror") and has_line_above(hit, frames, MAX_CLIENT_CALL_LINES)

    return [
        replace(hit, sign="fetched-in-vain") if hit.sign == "lookup-failed" and fetches(hit) else hit for hit in hits
    ]


def _without_answered_lookups(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without failed lookups of names that were found later, and without refused steps of a Slurm job if a
    later try began the step."""
    answered = {
        (hit.line.source, hit.groups["host"].partition(".")[0]): hit.line.number
        for hit in hits
        if hit.sign == "lookup-answered"
    }
    created = {hit.line.source: hit.line.number for hit in hits if hit.sign == "step-created"}

    def is_answered(hit: Hit) -> bool:
        if hit.sign == "step-refused":
            return "retrying" in hit.line.text and hit.line.number < created.get(hit.line.source, 0)
        return hit.sign == "lookup-failed" and any(
            hit.line.source == source and hit.line.number < at and name in hit.line.text
            for (source, name), at in answered.items()
        )

    return [hit for hit in hits if not is_answered(hit)]


def _without_later_logins(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without failed logins to hosts that ssh came to later: it tells so when it meets a host for the first
    time, and so do launchers that wait for one."""

    def where(hit: Hit) -> tuple[str, str]:
        return hit.line.source, hit.groups.get("host") or hit.line.node or ""

    met = {where(hit): hit.line.number for hit in hits if hit.sign == "ssh-met-host"}
    # What sshd says before it lets anybody in may name no host.
    last = {source: max(at for (one, _), at in met.items() if one == source) for source, _ in met}

    def is_too_early(hit: Hit) -> bool:
        source, host = where(hit)
        return hit.line.number < (met.get((source, host), 0) if host else last.get(source, 0))

    answered = {
        hit.line.place
        for hit in hits
        if hit.sign in ("ssh-lookup", "ssh-port-refused", "ssh-no-answer", "ssh-handshake", "ssh-boots")
        and is_too_early(hit)
    }
    return [hit for hit in hits if hit.line.place not in answered]


def _with_summary_speakers(hits: Sequence[Hit]) -> Iterator[Hit]:
    """The hits, in which those about an exit code in torchrun's summary get the rank and the host that the summary
    names some lines above."""
    ranks = {hit.line.place: parse_small_number(hit.groups["rank"]) for hit in hits if hit.sign == "summary-rank"}
    hosts = {hit.line.place: hit.groups["host"] for hit in hits if hit.sign == "summary-host"}
    for hit in hits:
        line = hit.line
        if "exitcode" not in line.text and "Signal " not in line.text:
            yield hit
            continue
        above = [(line.source, line.number - back) for back in range(1, MAX_SUMMARY_LINES)]
        rank = next((ranks[place] for place in above if place in ranks), line.rank)
        node = next((hosts[place] for place in above if place in hosts), line.node)
        yield replace(hit, line=replace(line, rank=rank, node=node))
