"""From the bytes of a line to what it says, who printed it, and when: the prefixes of launchers, and clocks' dialects."""

from __future__ import annotations

import re

from runbook.diagnose.languages import in_english
from runbook.diagnose.sign import Line
from runbook.model.numbers import small_number

LONGEST = 2000  # characters of a line that are looked at
SHOWN = 300  # characters of a line that are quoted

# CSI (as bytes, as JSON or a pager writes it, and colours whose escape a forum dropped), OSC, and short escape sequences;
# then the controls that are left.
ESCAPES = re.compile(
    r"(?:\x1b|\\u001b|\\x1b|\\033|\^\[)\[[0-?]*[ -/]*[@-~]|\[(?:\d{1,2};)*\d{1,2}m(?![\d<])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]"
)

MONTHS = {
    name: at
    for at, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)
}
CLOCKS = (
    re.compile(r"\b(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
    re.compile(r"(?:^|[\s\[])[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d\.\d+)"),  # glog, c10d
    re.compile(r"\b(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"),  # syslog, dmesg -T
    re.compile(r"^\D{0,20}(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)\b"),
)  # fmt: skip

HOST = r"(?:localhost|(?=[\w.-]*\d)(?!python|pip)[a-z][\w-]*(?:\.[\w-]+)*|(?:\d{1,3}\.){3}\d{1,3})"
PREFIXES = (
    re.compile(r"\A(?:[>|`]+ ?|\*\*(?!\*) ?)"),  # quoted in a forum, or a table of a log viewer
    re.compile(r"\A(?:20\S+Z )?std(?:out|err) [FP] "),  # Kubernetes' own files
    re.compile(r"\A(?:(?:(?P<node>[\w.-]+) )?\[std(?:out|err)\] |std(?:out|err): )"),
    re.compile(r"\A\s+(?=\S)"),
    re.compile(r"\A(?:\d+ +(?=[\w.-]+:\d+:\d+ \[\d+\])|\d{1,7}(?:\t| {2,}| ?[|│] )(?=[^\d\s])|\[\d{3,7}\] (?=\[))"),  # a viewer's line numbers
    re.compile(r"\AE\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?\S+\.py:\d+\] "),  # torch's own Python
    re.compile(r"\A(?:ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?\S+:\d+\] ?"),  # vLLM
    re.compile(r"\A(?:(?:ERROR|CRITICAL):[\w.]*: ?|- [\w.]+ - (?:ERROR|CRITICAL) - )"),  # Python's logging
    re.compile(r"\A(?P<node>[\w.-]+) (?=[\w./@-]+\[\d+\]: |kernel: )"),  # syslog, the journal
    re.compile(r"\A(?!(?:sshd|systemd|sudo|nvidia|nv)\b)[A-Za-z][\w./@-]*\[\d+\]: "),
    re.compile(r"\A\[?\(?(?:[a-z_ -]*\w )?pid=\d+(?:, ip=(?P<node>[\w.]+))?\)\]?:? ?", re.IGNORECASE),  # Ray
    re.compile(r"\A\[(?:rank ?|default)(?P<rank>\d+)\] ?:? ?", re.IGNORECASE),  # torch, torchrun --tee
    re.compile(r"\A\[\d+,(?P<rank>\d+)\]<std\w+>: ?"),  # Open MPI --tag-output
    re.compile(r"\A<?rank ?(?P<rank>\d+)[>:] ?", re.IGNORECASE),
    re.compile(r"\A(?P<rank>\d{1,5}): "),  # srun -l
    re.compile(r"\A\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ?"),  # kubectl logs --prefix
    re.compile(rf"\A(?P<node>{HOST}) *\| "),  # docker compose
    re.compile(rf"\A(?P<node>{HOST}): "),  # pdsh, DeepSpeed, ansible
    re.compile(r"\A\[?(?:[A-Z][a-z]{2} )?(?:20\d\d[-/]\d\d[-/]\d\d[T _]|[A-Z][a-z]{2} +\d{1,2} )\d\d:\d\d:\d\d(?:[.,]\d+)?(?: 20\d\d)?(?:Z|[+-]\d\d:?\d\d)?\]?,? +"),
    re.compile(r"\A\[ *\+?\d+\.\d{6}\] "),  # dmesg
)  # fmt: skip
ANY_PREFIX = re.compile("|".join(f"(?{'i' if p.flags & re.IGNORECASE else ''}:{p.pattern})" for p in PREFIXES).replace("(?P<node>", "(?:").replace("(?P<rank>", "(?:"))  # fmt: skip
"""Whether any of them is there, at the price of one."""
GUESSES = re.compile(r"\b(?:potential|possible|common) (?:root )?(?:causes?|reasons?)\b.*", re.IGNORECASE)
"""What a program lists as causes it can think of: none of them is told by it."""
NCCL = re.compile(r"\A(?P<node>[\w.-]+):\d+:\d+ \[\d+\] ")
SLURM = re.compile(r"\b(?:srun|slurmstepd): error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)?")
RANK_INSIDE = re.compile(r"\[(?:[^\]\[]*\b)?Rank ?(?P<rank>\d+)\]|\bon rank[: ]+(?P<at>\d+)\b", re.IGNORECASE)
SECTION = re.compile(r"^(?:###+|==>|=== ?|--- ?|>>>) *(?P<title>[^#=<>-].*)")
SECTION_RANK = re.compile(r"\brank[ _-]?(?P<rank>\d+)\b", re.IGNORECASE)
SECTION_NODE = re.compile(rf"^(?:node |host |on )?(?P<node>{HOST}|(?:node|host|worker|master)[\w.-]*)(?![\w/])")
PATH_RANK = re.compile(r"rank[-_.]?0*(?P<rank>\d+)(?:\.(?P<node>[A-Za-z][\w-]*))?\b")


def read_line(
    source: str,
    number: int,
    raw: bytes,
    section: tuple[int | None, str | None] = (None, None),
    *,
    foreign: bool = False,
) -> Line:
    """The line without escapes and prefixes; `section` is who printed it when the line itself does not say."""
    shown = ESCAPES.sub("", raw[:LONGEST].decode("utf-8", "replace")).rstrip()
    text, rank, node = unprefixed(in_english(shown) if foreign else shown)
    text = GUESSES.sub("", text)
    if told := SLURM.match(text):
        node = told["node"]
        rank = small_number(told["rank"]) if rank is None and text[told.end() : told.end() + 1] == ":" else rank
    if nccl := NCCL.match(text):
        node = nccl["node"]
    if rank is None and (inside := RANK_INSIDE.search(text)):
        rank = small_number(inside["rank"] or inside["at"])
    if rank is None and node is None:
        rank, node = section
    elif rank is None and node == section[1]:
        rank = section[0]
    elif node is None:
        node = section[1]
    return Line(source, number, text, shown[:SHOWN].strip(), rank, node, when(shown))


def unprefixed(text: str) -> tuple[str, int | None, str | None]:
    """The text behind the prefixes of launchers, and the rank and node that they name."""
    rank: int | None = None
    node: str | None = None
    for _ in range(9):
        if not ANY_PREFIX.match(text):
            break
        for prefix in PREFIXES:
            if found := prefix.match(text):
                groups = found.groupdict()
                rank = small_number(groups["rank"]) if groups.get("rank") else rank
                node = groups.get("node") or node
                text = text[found.end() :]
                break
        else:
            break
    return text, rank, node


def section_of(text: str) -> tuple[int | None, str | None] | None:
    """Who speaks from here on, where a line is a heading such as `### rank 0` or `==> node-b.log <==`."""
    heading = SECTION.match(text.strip()) or SECTION.match(unprefixed(text)[0].strip())
    if not heading:
        return None
    title = heading["title"].rstrip(" #<=-")
    rank = SECTION_RANK.search(title)
    node = SECTION_NODE.match(title)
    if not rank and not node:
        return None
    return small_number(rank["rank"]) if rank else None, node["node"] if node else None


def section_of_path(path: str) -> tuple[int | None, str | None]:
    """Who speaks in a file by its name: `rank-00003.node-b.log`, `rank3.log`."""
    found = PATH_RANK.search(path.replace("\\", "/").rpartition("/")[2])
    if not found:
        return None, None
    return small_number(found["rank"]), found["node"] if found["node"] not in (
        "log",
        "out",
        "err",
        "txt",
        "gz",
    ) else None


def when(text: str) -> float | None:
    """Seconds since the year began (or the day, where the clock tells no more), to compare lines of one run."""
    for clock in CLOCKS:
        if found := clock.search(text[:200]):
            told = found.groupdict()
            month = MONTHS.get(told["name"].lower(), 0) if told.get("name") else int(told.get("month") or 0)
            days = month * 31 + int(told.get("day") or 0)
            return days * 86400 + int(told["h"]) * 3600 + int(told["m"]) * 60 + float(told["s"].replace(",", "."))
    return None
