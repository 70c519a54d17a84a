"""Run folders of every kind, written as `runbook run` leaves them: what reports are made from in tests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runbook.files.inventory import load_inventory
from runbook.files.yaml_document import parse_document
from runbook.launch.ranks import describe_nodes
from runbook.model.events import Event, Progress, RunFinished, RunStarted
from runbook.model.remedy import Remedy
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.run_json import Result, event_to_json

from .made_up_runs import PAIR, STORIES, Story, passed

MARKUP = "<script>alert('run')</script><img src=x onerror=alert(1)>"
STAGES = ("reach", "ping", "port", "firewall", "ibstat", "connection", "links", "small AllReduce")


def write_run(folder: Path, events: Iterable[Event], files: Mapping[str, str] | None = None) -> Path:
    """A run's folder with these events, their result, and further files by their path below it."""
    folder.mkdir(parents=True, exist_ok=True)
    told = list(events)
    (folder / "events.jsonl").write_text("".join(event_to_json(event) + "\n" for event in told))
    if any(isinstance(event, RunFinished) for event in told):
        result = Result()
        for event in told:
            result(event)
        (folder / "result.json").write_text(result.text())
    for name, text in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return folder


def with_plan(
    events: Sequence[Event], env: str = "{NCCL_DEBUG: INFO}", node_env: str = "{}", gpus: int = 0
) -> list[Event]:
    """The events with the plan of an inventory of their nodes, of which the last has an `env` of its own."""
    started = next(event for event in events if isinstance(event, RunStarted))
    lines = [f"name: lab\nenv: {env}\ndefaults: {{gpus: {gpus}}}\nnodes:"]
    for number, name in enumerate(started.nodes):
        own = f", env: {node_env}" if name == started.nodes[-1] else ""
        rack = f", rack: rack{number // 16:02d}" if len(started.nodes) > 64 else ""
        lines.append(f"  {name}: {{address: 10.0.{number // 250}.{number % 250 + 1}{own}{rack}}}")
    plan = describe_nodes(load_inventory(parse_document("\n".join(lines), "lab.yml"))[0])
    return [replace(event, plan=plan) if isinstance(event, RunStarted) else event for event in events]


def failing(stage: str) -> list[Event]:
    """A run that stops at this stage."""
    story = Story(PAIR, *STAGES)
    for name in STAGES[: STAGES.index(stage)]:
        story.step(name, 0.8, *passed(PAIR, f"{name} is well"))
    finding = Finding(
        "mtu-blackhole",
        f"{stage} fails on node-b: packets of `1500` bytes vanish",
        Remedy.run("sudo ip link set eth0 mtu 1450"),
        ("ping -M do -s 1472: no answer", "  from 10.0.0.2"),
        ("node-a",),
    )
    story.step(stage, 2.0, Outcome.passed("node-a", "well", warnings=["slow"]), Outcome.failed("node-b", finding))
    return story.end(Verdict.FAIL, 1, stage, ("mtu-blackhole",))


def links_of(nodes: Sequence[str], slow: str, *, partners: int) -> list[Outcome]:
    """Each node measured towards so many of the next; `slow` sends at a third."""
    chance = random.Random(1)
    outcomes = []
    for at, node in enumerate(nodes):
        targets = [nodes[(at + step) % len(nodes)] for step in range(1, partners + 1)]
        links = [
            {
                "from": node,
                "to": target,
                "gbps": round((60 if node == slow else 190) * chance.uniform(0.97, 1.03), 3),
                "us": round(chance.uniform(8, 12), 1),
                "round": step,
                "both_gbps": 180.0,
            }
            for step, target in enumerate(targets, 1)
        ]
        metrics: dict[str, object] = {"links": links}
        if node == slow:
            finding = Finding(
                "node-slow", f"{node} sends at 60 Gbit/s, whoever receives", Remedy.run(f"sudo ethtool {node}0")
            )
            outcomes.append(Outcome.failed(node, finding, metrics=metrics))
        else:
            outcomes.append(Outcome.passed(node, "as fast as others", metrics=metrics))
    return outcomes


def linked(count: int, partners: int) -> list[Event]:
    nodes = [f"gn{number:03d}" for number in range(1, count + 1)]
    story = Story(nodes, "reach", "links")
    facts = {"python": "3.11.7", "torch": "2.13.0", "gpu": "H100", "gpus": 8, "nccl": "2.27.3"}
    odd = {**facts, "torch": "2.12.1"}
    story.step(
        "reach",
        3.0,
        *(
            Outcome.passed(node, "Python 3.11.7", metrics=(odd if node == nodes[-1] else facts) | {"hostname": node})
            for node in nodes
        ),
    )
    story.step("links", 30.0, *links_of(nodes, nodes[count // 2], partners=partners))
    return with_plan(story.end(Verdict.FAIL, 1, "links", ("node-slow",)), gpus=8)


def swept(times: float = 1.0, gate: float | None = 20.0) -> list[Event]:
    """A sweep of 21 sizes with a gate and a normal range."""
    story = Story(PAIR, "reach", "ping", "full AllReduce")
    story.step("reach", 2.0, *passed(PAIR, "Python 3.11.7")).step("ping", 0.7, *passed(PAIR, "1 peer answers"))
    story.begin("full AllReduce", "allreduce")
    for power in range(10, 31):
        size = 1 << power
        busbw = times * 24 * size / (size + 4e6)
        story.row(0.3, size, size / busbw / 1e3, busbw)
    metrics = {"gate_busbw_gbytes": gate, "expected_busbw_gbytes": [21.0, 24.0], "expected_source": "<a table>"}
    outcomes = [Outcome.passed(node, f"busbw {24 * times:.3g} GB/s at 1 GiB", metrics=metrics) for node in PAIR]
    return with_plan(story.reach(0.1, *outcomes).finish(6.4).end())


def launched(*, killed: bool = False, node_env: str = "{OMP_NUM_THREADS: '4'}") -> list[Event]:
    """A launch of four ranks: the first attempt loses rank 3, the second ends well, unless runbook is killed meanwhile."""
    story = Story(PAIR, "reach", "train")
    story.step("reach", 2.0, *passed(PAIR, "Python 3.11.7")).begin("train", "launch")

    def tell(text: str, data: Mapping[str, object]) -> None:
        story.events.append(Progress(story.now, "train", text, data=data))

    def ends(number: int, codes: Sequence[int]) -> dict[str, object]:
        told = [
            {
                "node": PAIR[rank // 2],
                "ranks": [rank],
                "started": story.now - 8 + rank / 10,
                "ended": story.now - (1 if code == -9 else 0.2),
                "code": code,
                "state": "ended",
                "why": "rank 3 failed" if code == -15 else "",
            }
            for rank, code in enumerate(codes)
        ]
        return {"ends": {"number": number, "processes": told}}

    tell("attempt 1: preparing 2 nodes", {"attempt": {"number": 1, "launcher": "direct", "logs": "attempt-01"}})
    story.now += 9
    tell("", ends(1, (-15, -15, -15, -9)))
    tell("attempt 1 failed: rank 3 was killed", {})
    tell("attempt 2: preparing 2 nodes", {"attempt": {"number": 2, "launcher": "direct", "logs": "attempt-02"}})
    story.now += 9
    if killed:
        tell("step 40, 8.1/s", {"pace": {"step": 40, "per_s": 8.1, "age_s": 0.1}})
        return with_plan(story.events, node_env=node_env)
    tell("", ends(2, (0, 0, 0, 0)))
    return with_plan(story.reach(0, *passed(PAIR, "4 ranks ended with code 0")).finish(18).end(), node_env=node_env)


def hung(folder: Path) -> Path:
    """A rank that never called, with what was kept of it."""
    call = {"collective_seq_id": 7, "profiling_name": "gloo:all_reduce", "state": "scheduled", "input_sizes": [[256]]}
    files = {
        "hang/rank-00000.node-a.stack": 'Stack (most recent call first):\n  File "rank.py", line 1 in main\n',
        "hang/rank-00001.node-b.stack": f'  File "{MARKUP}", line 1 in \x1b[31mhold\x1b[0m\n',
        "hang/rank-00001.node-b.flight.json": json.dumps({"flight": {"entries": [call] * 20}}),
        "hang/node-a.json": "{}",
        "logs/rank-00001.node-b.log": f"\x1b]0;title\x07\x1b[2J{MARKUP}\n" * 400,
    }
    return write_run(folder, with_plan(failing("small AllReduce")), files)


def hostile_markup(folder: Path) -> Path:
    """Markup and what acts on a terminal, wherever a name or a text may stand."""
    bad = f"\x1b[31m{MARKUP}\u202e\x00"
    story = Story(("node-a", bad), bad, "ping", name=bad)
    finding = Finding(bad, f"`{bad}` {bad}", Remedy.run(f"sudo {bad}"), (bad, f"  {bad}"), (bad,))
    links = [{"from": bad, "to": "node-a", "gbps": 1e308, "us": float("nan")}, {"from": bad, "to": 3, "gbps": "x"}]
    rows = [{"size": bad}, {"size": 10**400, "busbw": 1}, {"size": 1024, "busbw": -1, "p50_us": 1e300}]
    metrics: dict[str, object] = {"links": links, "rows": rows, "torch": bad, "expected_busbw_gbytes": [bad, None]}
    story.begin(bad, "reach").progress(0.1, bad, bad, 7)
    story.events.append(Progress(story.now, bad, bad, data={"attempt": {"number": bad}, "row": 3, "ends": [bad]}))
    story.events.append(Progress(story.now, bad, "", data={"ends": {"number": bad, "processes": [{"code": 1e999}, 3]}}))
    story.reach(1, Outcome.failed("node-a", finding, metrics=metrics, warnings=[bad]))
    story.reach(1, Outcome(bad, Verdict.PASS, bad, metrics=metrics)).finish(1)
    story.drop({bad: bad})
    events = story.end(Verdict.FAIL, 1, bad, (bad,), cleaned=bad, not_dropped=bad, dropped=(bad,))
    plan = {
        "name": bad,
        "port": [],
        "env": {bad: bad, "X": 3},
        "nodes": [{"name": bad, "ranks": bad, "env": {bad: 1}}, 7],
    }
    told = [replace(event, plan=plan) if isinstance(event, RunStarted) else event for event in events]
    return write_run(folder, told, {"logs/x.log": MARKUP, "hang/rank-1.a.stack": bad.replace("\x00", "")})


def broken_lines(folder: Path) -> Path:
    """Events of which some are damaged, and the last is half there."""
    write_run(folder, STORIES["firewall"]())
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines[2:2] = ["{", "[1, 2]", '{"event": "run-started"}', '{"event": "progress", "time": 1e999}', "\x00" * 99]
    (folder / "events.jsonl").write_text("\n".join(lines) + '\n{"event": "stage-fin')
    return folder


def only_result(folder: Path) -> Path:
    """No events: somebody sent the result alone."""
    write_run(folder, STORIES["firewall"]())
    (folder / "events.jsonl").unlink()
    return folder


def _of(events: Callable[[], Iterable[Event]]) -> Callable[[Path], Path]:
    return lambda folder: write_run(folder, events())


VARIED: dict[str, Callable[[Path], Path]] = {
    **{name: _of(story) for name, story in STORIES.items()},
    **{f"stopped at {stage}": _of(lambda stage=stage: with_plan(failing(stage))) for stage in STAGES},  # type: ignore[misc]
    "a sweep": _of(swept),
    "four nodes and their links": _of(lambda: linked(4, 3)),
    "forty nodes and their links": _of(lambda: linked(40, 39)),
    "256 nodes": _of(lambda: linked(256, 12)),
    "a launch": _of(launched),
    "a launch, killed in the middle": _of(lambda: launched(killed=True)),
    "a hang": hung,
    "hostile markup": hostile_markup,
    "broken lines": broken_lines,
    "only the result": only_result,
    "only its beginning": _of(lambda: STORIES["healthy"]()[:1]),
}
"""By name, what writes the run into a folder and gives it back."""
