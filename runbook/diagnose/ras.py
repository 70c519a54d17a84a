"""NCCL's own report of a job's health (`ncclras`, NCCL 2.24 and newer): who launched fewer operations, who does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runbook.diagnose.collectives import spans
from runbook.diagnose.sign import Hit, Rule, Sign, Tier
from runbook.model.numbers import number

RULES = (
    Rule(
        "rank-behind",
        "{late} launched fewer {op} operations than the others ({how}); ask again: the one whose number stays is stuck",
        ("ras-behind",),
        tier=Tier.SYMPTOM,
        confidence="medium",
        remedy="`ncclras -v` twice, ten seconds apart; then `py-spy dump --pid PID` on the process named, to see where it waits",
    ),
    Rule(
        "rank-behind",
        "{late} does not answer NCCL's status query: stopped, stuck in the kernel, or gone",
        (
            "ras-silent",
            Sign("ras-unresponsive", "unresponsive", r"\"unresponsive\": true"),
        ),
        unless=("ras-dead", "ras-behind"),
        tier=Tier.SYMPTOM,
        confidence="medium",
        remedy="look at that process: `ps -o pid,stat,wchan:30,cmd -p PID` (T: stopped, D: waits in the kernel), its log, and `dmesg -T`",
    ),
    Rule(
        "peer-died",
        "{peer} is dead: NCCL could not reach it for a minute",
        (
            Sign(
                "ras-dead",
                "considered dead|peer_dead|considered_dead",
                r"considered dead \(unreachable via the RAS|PEER_DEAD(?:: (?P<peer>Process \d+ on node \S+(?: managing GPUs? [\d,-]+)?))?|\"considered_dead\": true",
            ),
        ),
        tier=Tier.SYMPTOM,
    ),
)  # fmt: skip

SIGNS = (
    Sign("ras-differs", "operation counts", r"ranks have different (?P<op>\w+) operation counts", keep=1000),
    Sign(
        "ras-count",
        "have launched up to|has launched up to|not launched any",
        r"^\s*(?:(?P<ranks>\d+) ranks|Rank (?P<rank>\d+)) ha(?:ve|s) (?:launched up to operation (?P<count>\d+)|not launched any)(?:.* on node (?P<node>\S+))?",
        keep=8000,
    ),
    Sign("ras-rank", "managed by process|process information not found", r"^\s*Rank (?P<rank>\d+) -- (?:GPU .* on node (?P<node>\S+))?", keep=8000),
    Sign("ras-missing", "missing communicator data|missing rank", r"Missing communicator data from \d+ (?:job )?(?:rank|process)|The missing ranks?: (?P<named>[\d, -]+)", keep=1000),
)  # fmt: skip


def read_report(hits: Mapping[str, Sequence[Hit]]) -> Iterator[Hit]:
    """The derived signs `ras-behind` and `ras-silent`: the report's lines mean something only below their headings."""
    names = ("ras-differs", "ras-count", "ras-rank", "ras-missing")
    lines = sorted(
        (hit for name in names for hit in hits.get(name, ())), key=lambda hit: (hit.line.source, hit.line.number)
    )
    counts: dict[int, _Count] = {}
    at: _Count | None = None
    heading: Hit | None = None
    silent: list[int] = []
    for hit in (*lines, None):
        if hit is None or hit.sign in ("ras-differs", "ras-missing"):
            if heading and heading.sign == "ras-differs":
                yield from _behind(heading, counts)
            elif heading and not (hit and hit.sign == "ras-missing" and "named" in hit.groups):
                yield Hit("ras-silent", heading.line, {"late": f"rank {spans(sorted(silent))}"} if silent else {})
            if hit and "named" in hit.groups:
                yield Hit("ras-silent", hit.line, {"late": f"rank {hit.groups['named'].strip()}"})
                hit = None
            counts, at, heading, silent = {}, None, hit, []
        elif hit.sign == "ras-count":
            at = counts.setdefault(number(hit.groups.get("count", "0")), _Count())
            at.size += number(hit.groups.get("ranks", "1"))
            at.add(hit)
        elif at and heading and heading.sign == "ras-differs":
            at.add(hit)
        else:
            silent.append(number(hit.groups["rank"]))


class _Count:
    """The ranks that launched one number of operations, as far as the report names them."""

    def __init__(self) -> None:
        self.size = 0
        self.named: list[int] = []
        self.lines: list[Hit] = []

    def add(self, hit: Hit) -> None:
        self.lines.append(hit)
        if "rank" in hit.groups:
            self.named.append(number(hit.groups["rank"]))


def _behind(heading: Hit, counts: Mapping[int, _Count]) -> Iterator[Hit]:
    if len(counts) < 2:
        return
    least, most = min(counts), max(counts)
    late = counts[least]
    ahead = sorted(rank for count, ranks in counts.items() if count > least for rank in ranks.named)
    if late.named:
        who = f"rank {spans(sorted(late.named))}"
    else:
        who = f"{late.size} ranks" + (f" (not rank {spans(ahead)})" if ahead else "")
    groups = {"late": who, "op": heading.groups["op"], "how": f"{least}, others {most}"}
    yield from (Hit("ras-behind", hit.line, groups) for hit in (heading, *late.lines))
