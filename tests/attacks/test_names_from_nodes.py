"""What nodes tell of jobs becomes paths, sums and sentences here: a lie or a damaged journal makes that node unknown, and
nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs.made_up_attempts import kept
from profiles import examples, one_in

from runbook.cli.main import main
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.failure import judge_attempt
from runbook.jobs.logs import RankLogs
from runbook.jobs.watch import WatchEnd
from runbook.model.errors import Unreachable
from runbook.model.redact import Redactor
from runbook.model.safe_files import BadName, checked_file_name
from runbook.model.verdict import Verdict
from runbook.node.journal import JOB_FIELDS, JOURNAL_FIELDS, checked_fields
from runbook.transport import node_answers
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.remote_program import MESSAGE_MARK

from .lying_supervisor import liar

CHECKOUT = Path(__file__).parents[2]
JOB = "20260101-000000-abcdef"
COMMANDS: dict[str, tuple[str, ...]] = {
    "ps": ("ps", "-v"),
    "ps as JSON": ("ps", "-o", "json"),
    "logs": ("logs", JOB),
    "logs -f": ("logs", "-f", JOB),
    "attach": ("attach", JOB),
    "stop": ("stop", JOB),
    "clean": ("clean", JOB),
    "clean all": ("clean", "--all"),
}


def journal(node: str, rank: int, **facts: Any) -> dict[str, Any]:
    """One that its keeper wrote when its process had ended."""
    return {
        "name": f"rank-{rank:05d}.{node}.l0",
        "job": JOB,
        "attempt": 1,
        "node": node,
        "ranks": [rank],
        "local_rank": 0,
        "gpus": [],
        "each": [],
        "detached": True,
        "keeper": 4194000 + rank,
        "keeper_born": 1,
        "state": "ended",
        "pid": 4194100 + rank,
        "born": 1,
        "code": 0,
        "started": 2.0,
        "ended": 3.0,
        "why": None,
        "left": [],
        **facts,
    }


def about(node: str) -> dict[str, Any]:
    return {
        "job": JOB,
        "node": node,
        "stage": "train",
        "launcher": "direct",
        "grace_s": 1.0,
        "command": ["train.py"],
        "attempt": 1,
        "port": 29500,
        "gpus": [],
        "nodes": {"node-a": [0], "node-b": [1]},
        "began": 1.0,
    }


def attempt_of(work: Path, node: str) -> Path:
    return work / JOB / node / "attempt-01"


def make_job(work: Path) -> None:
    """A job of two nodes that has ended well, as it lies on their disks."""
    for rank, node in enumerate(("node-a", "node-b")):
        attempt = attempt_of(work, node)
        attempt.mkdir(parents=True)
        for folder in (work / JOB, attempt.parent, attempt):
            folder.chmod(0o700)
        write(attempt.parent / "job.json", about(node))
        (attempt.parent / "KEPT").touch()
        write(attempt / f"rank-{rank:05d}.{node}.l0.json", journal(node, rank))
        for stream in ("out", "err"):
            (attempt / f"rank-{rank:05d}.{node}.l0.{stream}").write_text(f"{node} {stream}\n")


def write(path: Path, what: object) -> None:
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    path.chmod(0o600)


@dataclass(frozen=True)
class Site:
    """A folder to start commands in, with an honest node-a and node-b, and what must not change."""

    folder: Path
    work: Path
    precious: Path

    def inventory(self, python_of_b: str = sys.executable) -> None:
        (self.folder / "inventory.yml").write_text(
            f"network: {{interface: lo}}\ndefaults: {{connection: local, address: 127.0.0.1, workdir: {self.work}}}\n"
            f"nodes:\n  node-a: {{python: {sys.executable}}}\n  node-b: {{python: {python_of_b}}}\n"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path / "here", tmp_path / "work", tmp_path / "precious")
    for folder in (made.folder, made.precious):
        folder.mkdir()
    (made.precious / "authorized_keys").write_text("mine\n")
    make_job(made.work)
    made.inventory()
    monkeypatch.chdir(made.folder)
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    yield made
    for name, handler in before.items():
        signal.signal(name, handler)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_honest_nodes_are_believed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for name, argv in COMMANDS.items():
        if "clean" not in name:
            assert main([*argv, "-i", "inventory.yml"]) == 0, name
    said = capsys.readouterr()
    assert "[1 node-b] node-b out\n" in said.out
    assert main(["clean", JOB, "-i", "inventory.yml"]) == 0
    assert list(site.work.iterdir()) == []


# Lies.

KEYS = "../../../precious/authorized_keys"
LIES = {
    "an attempt that leads elsewhere": "jobs[0]['attempts'] = {'../../../precious': jobs[0]['attempts']['attempt-01']}",
    "an absolute attempt": "jobs[0]['attempts'] = {'PRECIOUS': jobs[0]['attempts']['attempt-01']}",
    "an attempt with dots behind": "jobs[0]['attempts']['attempt-99/../../..'] = []",
    "a journal's attempt": "jobs[0]['attempts']['attempt-01'][0]['attempt'] = '../../../precious'",
    "a process that leads elsewhere": f"jobs[0]['attempts']['attempt-01'][0]['name'] = '{KEYS}'",
    "an absolute process": "jobs[0]['attempts']['attempt-01'][0]['name'] = 'PRECIOUS/authorized_keys'",
    "a process of another node": "jobs[0]['attempts']['attempt-01'][0]['name'] = 'rank-00000.node-a.l0'",
    "a launcher's rank": f"jobs[0]['attempts']['attempt-01'][0]['each'] = ['{KEYS}']",
    "a rank of another node": "jobs[0]['attempts']['attempt-01'][0]['each'] = ['rank-00000.node-a.l0']",
    "a name with an escape": "jobs[0]['attempts']['attempt-01'][0]['name'] = 'rank-\\x1b[2J.node-b.l0'",
    "a name of 100 kB": "jobs[0]['attempts']['attempt-01'][0]['name'] = 'rank-' + 'x' * 100000 + '.node-b.l0'",
    "a NUL": "jobs[0]['attempts']['attempt-01'][0]['name'] = 'rank-00001.node-b.l0\\0'",
    "the job's own name": "jobs[0]['about']['job'] = '../../precious'",
    "an absolute job": "jobs[0]['about']['job'] = 'PRECIOUS'",
    "another job's journal": "jobs[0]['attempts']['attempt-01'][0]['job'] = 'another'",
    "another node's journal": "jobs[0]['attempts']['attempt-01'][0]['node'] = 'node-a'",
    "a node that nobody knows": "jobs[0]['attempts']['attempt-01'][0]['node'] = 'node-z'",
    "a name twice": "jobs[0]['attempts']['attempt-01'] *= 2",
    "nodes that are paths": "jobs[0]['about']['nodes'] = {'../x': [0]}",
    "a grace for ever": "jobs[0]['about']['grace_s'] = float('inf')",
    "no rank": "jobs[0]['attempts']['attempt-01'][0]['ranks'] = []",
    "jobs that are none": "answer['jobs'] = 7",
    "no jobs": "answer.pop('jobs', 0) and answer.pop('time')",
    "a time that is none": "if jobs: answer['time'] = 'now'",
    "damage that is none": "jobs[0]['damaged'] = [{'name': 3}]",
}


@pytest.mark.parametrize("lie", one_in(30, LIES, thorough=2))
def test_a_lie_makes_its_node_unknown_and_nothing_is_written_elsewhere(
    site: Site, lie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = LIES[lie].replace("PRECIOUS", str(site.precious))
    body = f"if jobs:\n    {body}" if "jobs[0]" in body else body
    site.inventory(str(liar(site.folder.parent, body)))
    before, outside = files(site.precious), {path.name for path in site.folder.parent.iterdir()}
    for name, argv in COMMANDS.items():
        told = main([*argv, "-i", "inventory.yml"])
        said = capsys.readouterr()
        assert told == 3, (name, said)
        text = said.out + said.err
        assert "Traceback" not in text
        assert "\x1b" not in text
        assert "node-b" in text
        if name == "ps as JSON":
            document = json.loads(said.out)
            assert re.search(r"`[$\w.\[\]]+`|jobs|time|malformed", document["unreached"]["node-b"]), (
                "the field is named"
            )
            (job,) = document["jobs"]
            assert (job["job"], job["absent"], [one["node"] for one in job["ranks"]]) == (JOB, ["node-b"], ["node-a"])
        if name == "logs":
            assert "[0 node-a] node-a out\n" in said.out
    assert files(site.precious) == before
    assert {path.name for path in site.folder.parent.iterdir()} == outside
    runs = site.folder / ".runbook" / "runs"
    assert all(path.name.startswith(f"{JOB}-") for path in runs.iterdir())
    written = {path.name for path in runs.rglob("*") if path.is_file()}
    assert written == {"rank-00000.node-a.l0.out", "rank-00000.node-a.l0.err"}
    assert not (site.work / JOB / "node-a").exists(), "the honest node was cleaned"


def test_the_real_program_alone_with_a_lying_node_is_3_with_its_sentence(site: Site) -> None:
    site.inventory(str(liar(site.folder.parent, f"if jobs:\n    {LIES['an attempt that leads elsewhere']}")))
    for command in ("logs", "attach", "stop", "clean"):
        done = subprocess.run(
            [sys.executable, "-m", "runbook", command, JOB, "-l", "node-b", "-i", "inventory.yml"],
            cwd=site.folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert re.match(r"error\[tool-output-unknown\]: node-b: .*`\$\.jobs\[\d\]\.attempts`", done.stderr)
        assert "\n  fix       " in done.stderr


# Damaged journals.

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["../x", "/etc/passwd", "", "..", "\x1b[2J", "a\0b", "x" * 5000, "ended", "running", "node-a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str]:
    """Which file of node-b, and what it holds."""
    which = draw(st.sampled_from(["journal", "job.json"]))
    facts = journal("node-b", 1) if which == "journal" else about("node-b")
    how = draw(st.sampled_from(["a field", "a field", "fields", "cut", "bytes", "another"]))
    if how in ("a field", "fields"):
        names = st.sampled_from(sorted(JOURNAL_FIELDS if which == "journal" else JOB_FIELDS))
        for name in draw(st.lists(names, min_size=1, max_size=1 if how == "a field" else 4)):
            if draw(st.booleans()):
                facts.pop(name, None)
            else:
                facts[name] = draw(VALUES)
        return which, json.dumps(facts)
    text = json.dumps(facts)
    if how == "cut":
        return which, text[: draw(st.integers(0, len(text) - 1))]
    if how == "bytes":
        at = draw(st.integers(0, len(text) - 1))
        return which, text[:at] + draw(st.text(max_size=3)) + text[at + 1 :]
    return which, draw(VALUES.map(json.dumps) | st.sampled_from(["[" * 100_000, "9" * 5000, '{"a":' * 50_000]))


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=damaged())
def test_a_damaged_journal_is_named_and_stops_no_other_node(
    site: Site, capsys: pytest.CaptureFixture[str], case: tuple[str, str]
) -> None:
    which, text = case
    shutil.rmtree(site.work)
    make_job(site.work)
    attempt = attempt_of(site.work, "node-b")
    path = attempt / "rank-00001.node-b.l0.json" if which == "journal" else attempt.parent / "job.json"
    path.write_text(text, errors="replace")
    before = files(site.precious)
    for name, argv in COMMANDS.items():
        code = main([*argv, "-i", "inventory.yml"])
        said = capsys.readouterr()
        assert code in (0, 1, 3), (name, said)
        assert "Traceback" not in said.out + said.err
        if name == "ps as JSON":
            document = json.loads(said.out)
            assert document["unreached"] == {}, "its program tells what is damaged: the node itself is not in doubt"
            (job,) = document["jobs"]
            assert "node-a" in [one["node"] for one in job["ranks"]]
            told = [one for node in job["damaged"].values() for one in node]
            assert (code == 3) == bool(told)
            if told:
                assert path.name in told[0]
                assert job["state"] in ("unknown", "failed", "stopped")
            else:  # another journal, and a sound one
                assert job["ranks"][-1]["name"] == "rank-00001.node-b.l0"
        if name == "logs":
            assert "[0 node-a] node-a out\n" in said.out
    assert list(site.work.iterdir()) == [], "nothing of it lives: it can be removed"
    assert files(site.precious) == before


def test_a_journal_that_is_too_large_is_not_read(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    path = attempt_of(site.work, "node-b") / "rank-00001.node-b.l0.json"
    with path.open("wb") as file:
        file.truncate(1 << 32)
    assert main(["ps", "-i", "inventory.yml"]) == 3
    assert f"on node-b damaged: attempt-01/{path.name}: it is larger than" in capsys.readouterr().out


@settings(deadline=None)
@given(name=st.text(max_size=300) | st.from_regex(r"[A-Za-z0-9_./\\-]{0,20}"))
def test_a_name_of_a_file_stays_in_its_folder(name: str) -> None:
    try:
        checked_file_name(name)
    except BadName:
        return
    assert name == Path(name).name
    assert name not in (".", "..", "")
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 250


@given(facts=st.dictionaries(st.sampled_from(sorted(JOURNAL_FIELDS)), VALUES, min_size=1))
@settings(deadline=None)
def test_what_a_keeper_says_while_it_runs_is_checked_as_well(facts: dict[str, Any]) -> None:
    said = {"event": "kept", **journal("node-b", 1), **facts}
    text = json.dumps(said).encode()
    try:
        message = node_answers.checked_message(node_answers.KEEPER_MESSAGES, text)
    except UnexpectedAnswer as error:
        wrong = str(error)
    else:
        wrong = ""
    if wrong:
        assert any(f"`{field}`" in wrong for field in facts) or b"NaN" in text or b"Infinity" in text, (
            "which is no JSON"
        )
        return
    assert message == said
    assert checked_fields(message, JOURNAL_FIELDS) == {**journal("node-b", 1), **facts}


def test_a_keeper_that_is_not_believed_makes_its_node_unknown(tmp_path: Path) -> None:
    pair = kept(tmp_path)
    a, b = pair.on("node-a")[0], pair.on("node-b")[0]
    pair.news.put((a, {"event": "kept", **journal("node-a", 0)}))
    assert pair.take_news(0.0)
    pair.lose("node-b", Unreachable("tool-output-unknown", "what it said is not what our programs say", "look at it"))
    assert (a.state, a.lost) == ("ended", None)
    told = {one.node: one for one in judge_attempt(pair, WatchEnd("failed", b), {})}
    assert {one.verdict for one in told.values()} == {Verdict.UNKNOWN}
    assert [told["node-b"].findings[0].cause, told["node-a"].findings[0].cause] == ["tool-output-unknown", "peer-died"]


@pytest.mark.parametrize(
    "line", [b"5", b"[]", b"{}", b'{"event": 3}', b"[" * 60_000, b'"x"', b"null", b'{"event": "odd"}']
)
def test_a_rank_that_prints_what_looks_like_ours_stops_nothing(tmp_path: Path, line: bytes) -> None:
    stops: list[Any] = []
    place = ProcessSpec("rank-00001.node-b.l0", "node-b", 0, (1,))
    logs = RankLogs(tmp_path, "attempt-01", Redactor(()), lambda *_: None, lambda _, event: stops.append(event))
    logs.take(place, f"{place.name}.err", MESSAGE_MARK + line + b"\n", 0)
    assert stops == ([{"event": "odd"}] if b"odd" in line else [])


def test_every_field_of_a_journal_is_one_that_is_checked() -> None:
    assert set(journal("node-b", 1)) <= set(JOURNAL_FIELDS)
    assert set(about("node-b")) <= set(JOB_FIELDS)
