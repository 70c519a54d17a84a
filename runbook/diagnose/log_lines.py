"""From the bytes of a line of a log to its text, its speaker and its time.

Reads prefixes of launchers and many forms of time, translates system errors from other languages into English, joins
lines that a terminal or a forum broke, and unpacks lines that a logger packed into JSON.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise

from runbook.diagnose.rule_types import Hit, Line
from runbook.files.shipped_files import load_own_table
from runbook.model.units import parse_small_number

# --- other languages ------------------------------------------------------------------------------------------------

ENGLISH_BY_PHRASE = {
    phrase: english
    for english, phrases in load_own_table("runbook.diagnose", "languages.toml").items()
    for phrase in phrases
}
FOREIGN_PHRASES = tuple(phrase.encode().lower().decode() for phrase in ENGLISH_BY_PHRASE)
"""The foreign phrases, in lower case as `bytes.lower` gives it, which leaves letters beyond ASCII alone."""


def translate_phrases(text: str) -> str:
    """The line with each phrase of ENGLISH_BY_PHRASE translated, and French colons closed up."""
    for phrase, english in ENGLISH_BY_PHRASE.items():
        text = text.replace(phrase, english)
    return text.replace("\u00a0:", ":").replace(" : ", ": ")


# --- text, speaker and time -----------------------------------------------------------------------------------------

MAX_LINE_BYTES = 2000  # bytes of a line that are read
MAX_SHOWN_CHARACTERS = 300  # characters of a line that are quoted

# Escape sequences: CSI (as bytes, as JSON or a pager writes it, and colours whose escape a forum dropped), OSC, and
# short ones; then all other control characters.
ESCAPES = re.compile(
    r"(?:\x1b|\\u001b|\\x1b|\\033|\^\[)\[[0-?]*[ -/]*[@-~]|\[(?:\d{1,2};)*\d{1,2}m(?!\d*(?:s\b|<))"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]"
)

MONTHS = {name: at for at, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
CLOCK = re.compile(r"\d:\d\d:\d\d")
"""A part of all that DATE_PATTERNS and TIME_OF_DAY match."""
DATE_PATTERNS = (
    re.compile(
        r"\b(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"
        r"(?P<zone> ?[+-]\d\d:?\d\d\b)?"
    ),
    re.compile(
        r"(?:^|[\s\[])[IWEF](?P<month>[01]?\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d\.\d+)"
    ),  # glog, c10d
    re.compile(
        r"\b(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"
    ),  # syslog, dmesg -T
)
TIME_OF_DAY = re.compile(r"^\D{0,20}(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)\b")

# A name with a digit is taken as a host, but not the name of a module or error: urllib3, h5py, cv2.error.
NOT_A_HOST = r"(?!python|pip|mount\.|[\w.]+(?:Error|Exception|Timeout|\.error)\b)"
HOST_PATTERN = rf"(?:localhost|(?=[\w.-]*\d){NOT_A_HOST}[a-z][\w-]*(?:\.[\w-]+)*|(?:\d{{1,3}}\.){{3}}\d{{1,3}})"
# A name in brackets that is a part of a job or a library: `[c10d]`, `[gpu0]`, `[step12]`.
NOT_A_PART = (
    r"(?!(?:c10d|p2p|e2e|h2d|d2h)\b"
    r"|(?:[tdpecv]p|gpus?|cuda|dev(?:ice)?|step|iter\w*|epoch|batch|stage|layer|level|part|l|v|t)[-_]?\d)"
)
LINE_PREFIX_PATTERNS = (
    r"\A(?:[>|`]+ ?|\*\*(?!\*) ?)",  # quoted in a forum, or a table of a log viewer
    r"\A(?:20\S+Z )?std(?:out|err) [FP] ",  # Kubernetes' own files
    r"\A(?:(?:(?P<node>[\w.-]+) )?\[std(?:out|err)\] |std(?:out|err): )",
    r"\A\s+(?=\S)",
    # as `grep -n` shows a line of a file, which may be a rank's
    r"\A(?:\S{0,200}/)?(?:\w{0,20}?rank[-_.]?(?P<rank>\d{1,6})|[\w.-]{1,60})\.(?:log|txt|out|err)[:-]\d{1,9}[:-] ?",
    (
        r"\A(?:\d+ +(?=[\w.-]+:\d+:\d+ \[\d+\])|\d{1,7}(?:\t| {2,}| ?[|│] )(?=[^\d\s]|\d\d:\d\d:\d\d|\d+ ranks? )"
        r"|\[\d{3,7}\] (?=\[))"
    ),  # a viewer's line numbers
    r"\A\d{1,6}\.\d{1,3}s[\t ]\d{1,7}[\t ]",  # Kaggle's, of the time and the line
    r"\AE\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?\S+\.py:\d+\] ",  # torch's own Python
    r"\A(?:ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?\S+:\d+\] ?",  # vLLM
    (
        r"\A(?:(?:ERROR|CRITICAL):[\w.]*: ?|- (?:[\w.]+ - )?(?:ERROR|CRITICAL) - (?:[\w.]+ - )?"
        r"|(?:ERROR|CRITICAL|FATAL) +[\w./<>-]+:\d+ +--? )"
    ),  # Python's logging, as Ray sets it up too
    # tools that log all that a child prints at one level: Airflow, Prefect, XGBoost's tracker, a build server
    (
        r"\A(?:\[[^\]]{1,40}\] )?\{\w+\.py:\d+\} (?:INFO|WARNING|ERROR) - (?:\[[\w.-]+\] )?"
        r"|\A(?:\d\d:\d\d:\d\d\.\d+ )?\| (?:INFO|WARNING|ERROR) +\| (?:Flow|Task) run '[^']{1,80}' - "
        r"|\AINFO +\S*Tracker\S*(?: -|:) +|\A##\[error\] ?"
    ),
    r"\A(?P<node>[\w.-]+) (?=[\w./@-]+\[\d+\]: |kernel: )",  # syslog, the journal
    r"\A(?!(?:sshd|systemd|sudo|nvidia|nv)\b)[A-Za-z][\w./@-]*\[\d+\]: ",
    r"\A(?i:\[?\(?(?:[a-z_ -]*\w )?pid=\d+(?:, ip=(?P<node>[\w.]+))?\)\]?:? ?)",  # Ray
    r"\A\((?P<node>[\w.-]+), rank=\d+, pid=\d+(?:, ip=[\w.:]+)?\) ?",  # SkyPilot, which calls the node's number a rank
    r"\A(?i:\[(?:rank ?|default)(?P<rank>\d+)\] ?:? ?)",  # torch, torchrun --tee
    r"\A\[(?:\d+,)?(?P<rank>\d+)\]<std\w+>: ?",  # Open MPI --tag-output, horovodrun
    r"\A\[\d+,mpirank:(?P<rank>\d+),(?P<node>[\w.-]+)\]<std\w+>: ?",  # SageMaker
    r"\A│ (?=[A-Z][^│/]*│?$)",  # a box around an error
    r"\A(?i:<?rank ?(?P<rank>\d+)[>:] ?)",
    r"\A(?P<rank>\d{1,5}): ",  # srun -l
    r"\A\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ?",  # kubectl logs --prefix
    rf"\A(?P<node>{HOST_PATTERN}) *\| ",  # docker compose
    r"\A\[[\w.-]{1,60}\] (?=[\w.-]{1,60}:\d{1,9}:\d{1,9} \[\d{1,4}\] )",  # before a line of NCCL's
    rf"\A\[(?P<node>{NOT_A_PART}{HOST_PATTERN})\] (?=\S)",  # a launcher's, before all that a host prints
    rf"\A(?P<node>{HOST_PATTERN}): ",  # pdsh, DeepSpeed, ansible
    (
        r"\A\[?(?:[A-Z][a-z]{2} )?(?:20\d\d[-/]\d\d[-/]\d\d[T _]"
        r"|[A-Z][a-z]{2} +\d{1,2} )\d\d:\d\d:\d\d(?:[.,]\d+)?(?: 20\d\d)?(?:Z|[+-]\d\d:?\d\d)?\]?,?[ \t]+"
    ),
    r"\A\[ *\+?\d+\.\d{6}\] ",  # dmesg
)


def _first_match_pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    """One pattern that matches as the first of the patterns that matches. Pattern number 3 (from 0) is its group `p3`,
    which is then the match's `lastgroup`; the groups `rank` and `node` of that pattern are called `rank3` and
    `node3`."""
    own = (re.sub(r"\(\?P<(node|rank)>", rf"(?P<\g<1>{at}>", pattern) for at, pattern in enumerate(patterns))
    return re.compile("|".join(f"(?P<p{at}>{pattern})" for at, pattern in enumerate(own)))


LINE_PREFIX = _first_match_pattern(LINE_PREFIX_PATTERNS)
CAUSE_GUESSES = re.compile(
    r"(?:\b(?:potential|possible|common) (?:root )?(?:causes?|reasons?)\b.*"
    r"|\b(?:(?:can|may|might|could) (?:also )?(?:happen|occur)"
    r"|(?:usually|typically|often|normally) (?:happens?|occurs?)"
    r"|(?:can|may|might|could) be (?:due to|caused by (?:a segmentation fault|the process being killed)))\b"
    r"(?:[^.]|\.(?=\S))*"
    r"|(?:^|(?<=\. ))(?-i:If) (?:an?|the|one|any|your|another) (?:[^.]|\.(?=\S))*)",
    re.IGNORECASE,
)
"""A program's list of possible causes, or a sentence about when an error may happen: it reports none of them."""
GUESS_HINT = re.compile("If |(?:[Cc]aus|CAUS|[Rr]eason|REASON|[Hh]appen|HAPPEN|[Oo]ccur|OCCUR|[Dd]ue to|DUE TO)")
"""A part of all that CAUSE_GUESSES matches, in the ways to write it that occur."""
NCCL_PREFIX = re.compile(r"\A(?P<node>[\w.-]+):\d+:\d+ \[\d+\] ")
SLURM_TASK_ERROR = re.compile(r"\b(?:srun|slurmstepd): error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)?")
RANK_INSIDE = re.compile(r"\[(?:[^\]\[]*\b)?Rank ?(?P<rank>\d+)\]|\bon rank[: ]+(?P<at>\d+)\b", re.IGNORECASE)
SHELL_PROMPT = (
    r"(?:\([\w.-]+\) )?(?:(?:\[?(?:[\w.-]+@(?P<node>[\w.-]+)(?![\w.-]))[^\]$#>\n]*\]?)?[$#%❯] ?"
    r"|(?P<windows>PS (?:[A-Z]:|/)[^>\n]*> ?|[A-Z]:\\[^>\n]*> ?))"
)
"""A prompt of a shell, of cmd or of PowerShell."""
LAUNCH_PROGRAMS = frozenset(
    """mpirun mpiexec prterun srun sbatch torchrun python deepspeed accelerate horovodrun colossalai composer lightning
    bash sh hccl_test""".split()
)
BENCHMARK_SUFFIXES = ("_perf", "_bw", "_lat", "_perftest")
"""Endings of the names of benchmarks: all_reduce_perf, ib_write_bw, ib_send_lat."""
PROMPTED_COMMAND = re.compile(rf"\A{SHELL_PROMPT}(?P<words>\S.*)\Z")
SECTION = re.compile(r"^(?:###+|==>|={3,}|-{3,}|>>>) *(?P<title>[^#=<>-].*)")
HOST_PROMPT = re.compile(
    r"\A(?:\([\w.-]{1,40}\) )?(?P<bracket>\[)?(?P<user>[A-Za-z_][\w.-]{0,39}@)?"
    r"(?P<node>(?P<container>[0-9a-f]{12}\b)|[A-Za-z][\w.-]{0,60})"
    r"(?:(?(bracket) [^\s\]]{1,80}\]|:(?:~|/(?!/))[^\s$#%]{0,120}) ?[$#%❯]|(?(user)|(?<=\d))[$#]) (?P<words>\S.*)\Z"
)
"""A command at the prompt of a host: `me@n1:~$ …`, `[root@n1 ~]# …`, `n1:/data$ …`, `n1# …`. The prompt of a container
has a name that nobody else knows. A line that names the speaker of others must be surer to be one than SHELL_PROMPT."""
MACHINE_LABEL = re.compile(
    r"\A[*_]{0,4}(?i:(?P<on>(?:on|from|output of|log of|auf|von|sur|de|en|на)\s)?(?:the |dem |der |la |le |el )?"
    r"(?P<node>(?P<which>(?:first|second|third|1st|2nd|3rd|head|master|worker|other) )?"
    r"(?:machine|node|host|server|worker|pc|computer|box|laptop|workstation|client|rechner|knoten|maschine|serveur"
    r"|n[oœ]e?ud|m[aá]quina|nodo|servidor|машин[аеы]|узел|узле|сервере?|机器|节点|主机|服务器|マシン|ノード|サーバー?)"
    r"(?P<number>[_-]?(?:[a-d]|\d{1,4}|[一二三])|(?P<apart> (?:[a-d]|\d{1,4})))?))"
    r"(?P<address> ?[(（][^()（）]{1,60}[)）])?(?: ?(?:says|shows|config|settings|output|log|terminal))? ?"
    r"(?:[:：](?:(?(on)|(?(which)|(?(number)|(?(address)|(?!))))))|(?(apart)|(?!)))[*_]{0,4}\s{0,4}\Z"
)
"""A line of a post that only says which machine printed what follows: `On machine 2 (192.168.1.11):`. A bare `server:`
may be a key of YAML, and `node2` without a colon a row of a list of hosts; `PC 2` alone is a label."""
MAX_LABEL_BYTES = 100  # the longest line that is taken as a label
LOOP_OVER_HOSTS = re.compile(r"\bfor \w{1,20} in (?P<names>[\w. -]{1,300}); ?do\b.*\bssh\b")
REACHES_OTHERS = frozenset(
    """mpirun mpiexec prterun srun sbatch salloc horovodrun deepspeed colossalai ray ssh pdsh clush parallel-ssh pssh
    ansible ansible-playbook kubectl docker podman nerdctl apptainer singularity enroot fab sky flux bash sh zsh for
    while make""".split()
)
"""Programs whose output may be that of other hosts."""
SHOWS_FILES = frozenset(
    """cat tail head less more zcat bat grep egrep zgrep awk sed tee sacct squeue scontrol sinfo qsub qstat bsub bpeek
    bjobs aws gcloud az gsutil dstack modal""".split()
)
"""Programs that show what others have written."""
SECTION_RANK = re.compile(r"\brank[ _-]?(?P<rank>\d+)\b", re.IGNORECASE)
SECTION_NODE = re.compile(
    r"^(?!(?:epoch|step|stage|iter|batch|phase|fold|trial|run|fp|bf|int)[-_]?\d)(?:node |host |on )?"
    rf"(?P<node>{HOST_PATTERN}|(?:node|host|worker|master)[\w.-]*)(?![\w/])"
)
"""The beginning of a heading that names a node, and no part of a job, as `epoch2`."""
QUOTED_NODE = re.compile(r"(?i:node|host|pc|machine|server|box) [\"'“](?P<node>[\w.-]{1,40})[\"'”]")
"""The beginning of a heading such as `PC "anna"`: quotation marks make a name of any word."""
FILE_ENDINGS = ("log", "out", "err", "txt", "gz")  # of files, and no nodes
PATH_RANK = re.compile(r"rank[-_.]?0*(?P<rank>\d+)(?:\.(?P<node>[A-Za-z][\w-]*))?\b")


@functools.lru_cache(maxsize=64)  # the last lines of a source are read as lines, and as its end
def read_line(
    source: str,
    number: int,
    raw: bytes,
    section: tuple[int | None, str | None] = (None, None),
    *,
    foreign: bool = False,
) -> Line:
    """A line, read from its bytes. `section` is the speaker (rank, node) if the line itself names none; `foreign`: the
    line holds a phrase of another language, to be translated."""
    shown = ESCAPES.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", "replace")).rstrip()
    text, rank, node = strip_prefixes(translate_phrases(shown) if foreign else shown)
    text = text.removesuffix("│").rstrip()
    if GUESS_HINT.search(text):
        text = CAUSE_GUESSES.sub("", text)
    if told := SLURM_TASK_ERROR.match(text):
        node = told["node"]
        rank = parse_small_number(told["rank"]) if rank is None and text[told.end() : told.end() + 1] == ":" else rank
    if nccl := NCCL_PREFIX.match(text):
        node = nccl["node"]
    if rank is None and (inside := RANK_INSIDE.search(text)):
        rank = parse_small_number(inside["rank"] or inside["at"])
    if rank is None and node is None:
        rank, node = section
    elif rank is None and node == section[1]:
        rank = section[0]
    elif node is None:
        node = section[1]
    seconds, period = first_time(shown) or (None, 0.0)
    return Line(
        source, number, text, shown[:MAX_SHOWN_CHARACTERS].strip(), rank=rank, node=node, when=seconds, period=period
    )


@functools.lru_cache(maxsize=64)
def strip_prefixes(text: str) -> tuple[str, int | None, str | None]:
    """(text, rank, node): the text behind the prefixes of launchers and loggers, and the rank and node that they
    name. The last lines are remembered: one is asked for as a piece of a line before it, as a line, and as an end."""
    rank: int | None = None
    node: str | None = None
    for _ in range(9):
        found = LINE_PREFIX.match(text)
        if not found:
            break
        groups, which = found.groupdict(), (found.lastgroup or "")[1:]
        rank = parse_small_number(told) if (told := groups.get(f"rank{which}")) else rank
        node = groups.get(f"node{which}") or node
        text = text[found.end() :]
    return text, rank, node


def is_typed_command(line: str) -> bool:
    """Whether the line is for certain a command behind a prompt; `#` and `%` alone also begin other lines."""
    prompt = PROMPTED_COMMAND.match(line)
    return prompt is not None and bool(prompt["node"] or prompt["windows"] or line.startswith("$ "))


def starts_a_run(line: str) -> bool:
    """Whether the line is for certain a command that starts a program, and does not only show what one has left."""
    prompt = PROMPTED_COMMAND.match(line)
    if prompt is None or not is_typed_command(line):
        return False
    words = [word for word in re.split(r"[\s;&|'\"]+", prompt["words"]) if "=" not in word]
    programs = [word.rpartition("/")[2].rstrip("0123456789.") for word in words]
    return any(word.startswith("./") for word in words[:1]) or any(
        program in LAUNCH_PROGRAMS or program.endswith(BENCHMARK_SUFFIXES) for program in programs
    )


def names_in_a_loop(text: str) -> frozenset[str]:
    """The names that a shell's loop goes over: a line below that is one of them, and nothing else, is the heading of
    what that host printed."""
    loop = LOOP_OVER_HOSTS.search(text)
    return frozenset(name for name in loop["names"].split() if not name.isdecimal()) if loop else frozenset()


def section_speaker(text: str) -> tuple[int | None, str | None] | None:
    """The speaker (rank, node) of the lines below a heading such as `### rank 0`, `==> node-b.log <==` or `machine 2:`,
    or below a command at the prompt of a host; nobody, (None, None), below a command whose output may be other hosts'.
    None if the line is nothing of these."""
    bare = strip_prefixes(text)[0].strip()
    if prompt := HOST_PROMPT.match(bare):
        elsewhere = prompt["container"] or _may_speak_for_others(prompt["words"])
        return None, (None if elsewhere else prompt["node"])
    if not text[:1].isspace() and (label := MACHINE_LABEL.match(bare)):
        return None, label["node"].lower()
    heading = SECTION.match(text.strip()) or SECTION.match(bare)
    if not heading:
        return None
    title = heading["title"].rstrip(" #<=-")
    rank = SECTION_RANK.search(title)
    node = SECTION_NODE.match(title) or QUOTED_NODE.match(title)
    if not rank and not node:
        return None
    return parse_small_number(rank["rank"]) if rank else None, node["node"] if node else None


def _may_speak_for_others(command: str) -> bool:
    """Whether what a command prints may be what other hosts have printed. A script may start anything."""
    programs = [word.rpartition("/")[2] for word in command.split()]
    shown = {word.rpartition("/")[2] for word in command.partition("|")[0].split()}
    starts_others = not REACHES_OTHERS.isdisjoint(programs) or any(word.endswith(".sh") for word in programs)
    return starts_others or not SHOWS_FILES.isdisjoint(shown)


def speaker_of_path(path: str) -> tuple[int | None, str | None]:
    """The speaker (rank, node) of a file, by its name: `rank-00003.node-b.log`, `rank3.log`."""
    found = PATH_RANK.search(path.replace("\\", "/").rpartition("/")[2])
    if not found:
        return None, None
    return parse_small_number(found["rank"]), None if found["node"] in FILE_ENDINGS else found["node"]


DAY_S = 86400.0
YEAR_S = 12 * 31 * DAY_S
"""Seconds of a year by a clock that tells no year: only the order of its times counts, so that every month has 31
days."""


def first_time(text: str) -> tuple[float, float] | None:
    """(seconds, period) of the first time in a line that tells its day, or else its hour; None without one. With a
    year: the seconds by UTC, and 0. Without a year or a day: the seconds since the clock began, and after how many
    seconds it begins again. A time without a zone counts as UTC, as containers have it."""
    begin = text[:200]
    if CLOCK.search(begin) is None:
        return None
    dates = [found for pattern in DATE_PATTERNS if (found := pattern.search(begin))]
    for found in sorted(dates, key=re.Match.start):
        told = found.groupdict()
        month = int(told["month"]) if "month" in told else MONTHS.get(told["name"].lower(), 0)
        day = int(told["day"])
        if not (1 <= month <= 12 and 1 <= day <= 31):
            continue
        if "year" not in told:
            return (month * 31 + day) * DAY_S + _seconds_of_day(found), YEAR_S
        days = date(int(told["year"]), month, 1).toordinal() + day
        return days * DAY_S + _seconds_of_day(found) - _utc_offset_s(told["zone"]), 0.0
    return (_seconds_of_day(clock), DAY_S) if (clock := TIME_OF_DAY.search(begin)) else None


def _seconds_of_day(time: re.Match[str]) -> float:
    return int(time["h"]) * 3600 + int(time["m"]) * 60 + float(time["s"].replace(",", "."))


def _utc_offset_s(zone: str | None) -> float:
    if zone is None:
        return 0.0
    digits = zone.strip()[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone.strip().startswith("-") else seconds


def align_clocks(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, with times that can be compared. A time without a year gets the year of the others; a time without a
    date is dropped if others have one. A clock that began again meanwhile, at midnight or New Year, counts on."""
    timed = [(hit.line.when, hit.line.period) for hit in hits if hit.line.when is not None]
    periods = {period for _, period in timed}
    if not periods - {0.0}:
        return list(hits)
    period = 0.0 if 0.0 in periods else max(periods)
    times = sorted({when for when, its in timed if its == period})
    gap, behind = max(((after - before, before) for before, after in pairwise(times)), default=(0.0, 0.0))
    again = behind if 0 < period / 2 < gap else -1.0  # times up to this one are from after the clock began again

    def one(line: Line) -> Line:
        if line.when is None:
            return line
        if line.period == period:
            return replace(line, when=line.when + period) if line.when <= again else line
        of_no_year = line.period == YEAR_S and period == 0.0
        return replace(line, when=_time_in_nearest_year(line.when, times[0]) if of_no_year else None)

    aligned = ((hit, one(hit.line)) for hit in hits)
    return [hit if line is hit.line else replace(hit, line=line) for hit, line in aligned]


def _time_in_nearest_year(when: float, other: float) -> float:
    """The time `when` of a clock without a year as a time with a year: the year in which it is nearest to `other`."""
    days, seconds = divmod(when, DAY_S)
    month, day = divmod(int(days) - 1, 31)  # of the month, from 0
    year = date.fromordinal(int(other // DAY_S)).year
    firsts = [date(one, month, 1).toordinal() for one in (year - 1, year, year + 1)]
    return min(((first + day + 1) * DAY_S + seconds for first in firsts), key=lambda time: abs(time - other))


# --- broken and packed lines ----------------------------------------------------------------------------------------

BROKEN_LINE_OPENERS = (
    *(".cpp:", ".cc:", ".hpp:", ".h:", ".c:", "nccl warn", "warning: "),
    *("error", "exception", "fail", "barrier", "connect to", "socket"),
)
"""Literals, in lower case, of messages that are long enough to be broken into lines."""
ENDS_A_SENTENCE = re.compile(r"(?:[.!?;)\]}>\"'`]|\w(?:Error|Exception): ?)$")
CONTINUES_A_SENTENCE = re.compile(
    r"\A(?:(?:Work\w+\(|SeqNum|OpType|Numel|Timeout\(ms|Rank \d+\]|NCCL work"
    r"|Connection (?:refused|timed|reset)|Address already|No route|Broken pipe|Name or service"
    r"|\[[\w:.]+\]:\d|\[\.\./)"
    r"|(?![a-z_]+ +: |(?=\S*[\d.A-Z/-])[\w./-]+: |[\w.-]+:\d|frame #|terminate called|[\w.]+ ?=[ =]|[\w.]+\("
    r"|raise |return |exitcode|time |at /|in <|self\.|from |import |with )"
    r"(?:[a-z(,;&]|\d+(?:\)|,| [a-z])))"
)
"""The beginning of a piece that goes on with a sentence, as no line of its own begins."""
DIGIT_RUN = re.compile(r"\d+")
MAX_PIECES = 5  # the most pieces of one line
MAX_PIECE_BYTES = 400  # bytes; a longer line is never a piece

MESSAGE_KEYS = frozenset(
    """message msg log textPayload line text error err exception exc_info traceback py_callstack stack stacktrace stderr
    stdout output reason cause detail""".split()
)
"""Keys under which loggers put a program's output."""
EXIT_CODE_KEYS = frozenset({"exitcode", "exitstatus", "returncode"})
"""Keys, without `_` and in lower case, of how a process ended."""
HARMLESS_LEVELS = frozenset({"info", "debug", "notice", "trace", "warn", "warning"})
QUOTED_KEY_VALUE = re.compile(rb"[\w\"'] ?: ?b?[\"']")
ESCAPED_LINE_BREAK = re.compile(rb"(?<!\\)(?:\\\\)?(?:\\r)?\\n")
ESCAPED_TAB = re.compile(rb"(?<!\\)\\t")


TYPED_COMMAND = re.compile(r"(?:\([\w.-]{1,40}\) )?(?:\$|\+{1,3}|\[?[\w.-]{1,40}@[\w.-]{1,60}[^$#>]{0,80}[$#]) \S")
"""A command behind a prompt, or as `set -x` prints it."""


class BrokenLine:
    """A line that may go on in the next ones, and the number of its first piece."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number = number
        self.begun = raw
        self._pieces: list[str] = []

    def takes(self, raw: bytes) -> bool:
        """Whether `raw` is a further piece of this line; if so, it is added."""
        self._pieces = self._pieces or [_decoded_text(self.begun)]
        if (
            len(self._pieces) == MAX_PIECES
            or len(raw) > MAX_PIECE_BYTES
            or ENDS_A_SENTENCE.search(self._pieces[-1].rstrip())
        ):
            return False
        piece = _decoded_text(raw)
        prefix = _line_prefix(piece)
        if not CONTINUES_A_SENTENCE.match(piece[len(prefix) :].lstrip()):
            return False
        # A tool that puts a name before every line also puts it before the further pieces of a line.
        if not _prefix_without_digits(_line_prefix(self._pieces[0])).startswith(_prefix_without_digits(prefix)):
            return False
        self._pieces.append(piece[len(prefix) :])
        return True

    @property
    def readings(self) -> list[bytes]:
        """The ways to read the line: its pieces joined as if cut between words, joined as if cut inside a word, and its
        first piece alone."""
        if len(self._pieces) <= 1:
            return [self.begun]
        between = " ".join(piece.strip() for piece in self._pieces).replace(" , ", ", ").replace(" )", ")")
        within = "".join(self._pieces)
        return [*(text.encode() for text in dict.fromkeys((between, within))), self.begun]


def may_continue(raw: bytes) -> bool:
    """Whether a line with one of BROKEN_LINE_OPENERS may go on in the next line: below a command, its output begins."""
    text = _decoded_text(raw).rstrip() if len(raw) <= MAX_PIECE_BYTES else ""
    return bool(text) and not ENDS_A_SENTENCE.search(text) and not TYPED_COMMAND.match(text)


def unpack_line(raw: bytes) -> list[bytes]:
    """The lines inside a line of JSON, or inside a printed dict with line breaks in a string; empty for other lines."""
    line = raw.strip()
    if line.startswith(b"{") and line.endswith(b"}"):
        try:
            return list(_message_lines(json.loads(line)))
        except (ValueError, RecursionError):
            pass
    if b"\\n" not in raw or not QUOTED_KEY_VALUE.search(raw):
        return []
    lines = ESCAPED_LINE_BREAK.split(raw)
    return [ESCAPED_TAB.sub(b"\t", line).replace(b'\\"', b'"') for line in lines] if len(lines) > 1 else []


def _message_lines(document: object, level: str = "") -> Iterator[bytes]:
    """The lines of text under MESSAGE_KEYS in a JSON document, each after its time and, if it is no error, its level. A
    level given as `level` is the enclosing document's."""
    if not isinstance(document, dict):
        return
    told = document.get("level", document.get("levelname"))
    lesser = f"{told.upper()} " if isinstance(told, str) and told.lower() in HARMLESS_LEVELS else level
    at = next((document[key] for key in ("time", "timestamp", "ts") if isinstance(document.get(key), str)), "")
    for key, value in document.items():
        if key in MESSAGE_KEYS and isinstance(value, str):
            yield from (f"{at} {lesser}{line}".strip().encode("utf-8", "replace") for line in value.split("\n"))
        elif key.lower().replace("_", "") in EXIT_CODE_KEYS and isinstance(value, int) and value:
            yield f"{at} {lesser}exit code: {value}".strip().encode()
        elif isinstance(value, dict):
            yield from _message_lines(value, lesser)


def _decoded_text(raw: bytes) -> str:
    return ESCAPES.sub("", raw.decode("utf-8", "replace"))


def _line_prefix(piece: str) -> str:
    return piece[: len(piece) - len(strip_prefixes(piece)[0])]


def _prefix_without_digits(prefix: str) -> str:
    """A prefix without its digits, which change from line to line."""
    return DIGIT_RUN.sub("", prefix).strip()
