"""Whatever stands in a log, a paste, a file's name or a run's own files: `diagnose` ends in one of its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from diagnose.read import causes_in
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from profiles import examples, one_in

from runbook.checks.ranks.collective_calls import compare_dumps
from runbook.cli.main import main
from runbook.diagnose.all_rules import SIGNS
from runbook.diagnose.tool_outputs import known_tools, read_paste
from runbook.model.units import MAX_NUMBER, parse_number, parse_small_number
from runbook.transport import node_answers
from runbook.transport.frames import UnexpectedAnswer

EXAMPLES = examples(60, suppress_health_check=list(HealthCheck))
DIGITS = "7" * 4400
"""More than Python turns into a number."""
NUMBERS = ("0", "3", "-9", DIGITS, "0" * 4400 + "3", "٣", "1²2", "1e999", "999999999999", "0x" + "f" * 40, "1.2.3", "")
PATTERNS = [sign.pattern for sign in SIGNS if sign.pattern]
PATTERNED = st.sampled_from(PATTERNS).flatmap(
    lambda pattern: st.from_regex(re.compile(pattern, re.IGNORECASE)).map(lambda text: text[:3000])
)
"""A line that a sign of ours is found on."""
WORDS = st.one_of(
    st.sampled_from([key for sign in SIGNS for key in sign.literals]),
    st.sampled_from(NUMBERS),
    st.sampled_from(["rank", "### rank ", "[rank", "]:", "==> ", " <==", "node-b", ":29500", "exitcode  : ", "SeqNum=", "\r", "\\n", '{"msg": "', '"}', "\x1b[31m", "​", "﻿"]),
    st.text(max_size=12),
)  # fmt: skip
SPLICED = st.lists(WORDS, max_size=12).map(" ".join)


@st.composite
def lines(draw: DrawFn) -> str:
    """Lines of our own rules, their numbers replaced by hostile ones."""
    told = []
    for text in draw(st.lists(st.one_of(PATTERNED, SPLICED), min_size=1, max_size=12)):
        at = draw(st.sampled_from(NUMBERS))
        told.append(re.sub(r"\d+", lambda _: at, text) if draw(st.booleans()) else text)  # noqa: B023
    return "\n".join(told)


def ends(*named: object) -> int:
    """The exit code of `diagnose`, which has printed its one document."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["diagnose", "-o", "json", *map(str, named)])
    assert code in (0, 1, 2), err.getvalue()
    if code != 2:
        json.loads(out.getvalue())
    return code


@EXAMPLES
@given(lines(), lines())
def test_lines_of_our_own_rules_with_any_numbers(first: str, second: str) -> None:
    causes_in(job=first.encode("utf-8", "replace"), rank1=second.encode("utf-8", "replace"))


@EXAMPLES
@given(
    st.lists(st.one_of(lines().map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=200)), max_size=4)
)
def test_lines_among_bytes(parts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.log"
        file.write_bytes(b"".join(parts))
        ends(file)


@pytest.mark.parametrize(
    "line",
    [f"### rank {DIGITS}", f"[rank{DIGITS}]: KeyError: 'x'", f"{DIGITS}: KeyError: 'x'", f"[1,{DIGITS}]<stderr>: KeyError: 1",
     f"srun: error: gn1: task {DIGITS}: Out Of Memory", f"Rank {DIGITS} -- GPU 0 managed by process 1 on node a", f"  rank      : {DIGITS} (local_rank: 1)",
     f"[Rank {DIGITS}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={DIGITS}, OpType=ALLREDUCE, NumelIn={DIGITS}, NumelOut=1, Timeout(ms)=600000)",
     f"2026-11-20 22:30:{DIGITS} KeyError"],
)  # fmt: skip
@pytest.mark.parametrize("also", one_in(3, ["", "[rank0]: ", "[rank999999999]: "]))
def test_numbers_of_thousands_of_digits(tmp_path: Path, line: str, also: str) -> None:
    (tmp_path / "a.log").write_text(
        f"{line}\n{also}{line}\n{line.replace(DIGITS, '007')}\n{line.replace(DIGITS, '0012')}\n"
    )
    ends(tmp_path)


NAMES = st.one_of(
    st.sampled_from(["a1²2.log", "rank²3.log", "rank" + "7" * 200 + ".log", "٣.log", "attempt_0", "-", "-x", "a\nb.log", "\x1b[2J.log", "ibstat.txt", "nvidia-smi.txt", "x.tar.gz", "‮gol.a"]),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=40),
)  # fmt: skip


@EXAMPLES
@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.booleans())
def test_names_of_files(names: list[str], nested: bool) -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "x"
        folder.mkdir()
        for name in names:
            if name in (".", "..") or len(name.encode()) > 250:
                continue
            inside = folder / "attempt_0" / "٣7" if nested else folder
            inside.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(IsADirectoryError):
                (inside / name).write_bytes(b"step 1 loss 2.0\n")
        ends(folder)


@pytest.mark.parametrize("tool", one_in(3, known_tools()), ids=lambda tool: tool.name)
@examples(16, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_pastes_of_every_tool(tool: Any, data: st.DataObject) -> None:
    """What begins as its output and goes on with lines of it, their numbers hostile."""
    start = "" if "(?!)" in tool.start.pattern else data.draw(st.from_regex(tool.start))
    of_it = data.draw(st.lists(st.from_regex(tool.line), max_size=12))
    command = data.draw(st.sampled_from(["", f"$ {data.draw(st.from_regex(tool.command, fullmatch=True))}\n"]))
    text = command + "\n".join([start, *of_it])[:20_000]
    at = data.draw(st.sampled_from(NUMBERS))
    for one in (text, re.sub(r"\d+", lambda _: at, text)):
        read_paste(one, "a.log")
        causes_in(a=one.encode("utf-8", "replace"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NUMBERS) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FINDING = {
    "cause": "firewall-drop",
    "says": "node-b drops 29500",
    "remedy": "allow it",
    "evidence": ["no answer"],
    "peers": [],
}
RESULT: dict[str, Any] = {
    "version": 1, "verdict": "fail", "stopped_at": "firewall", "causes": ["firewall-drop"],
    "stages": [{"name": "firewall", "verdict": "fail", "outcomes": [{"node": "node-b", "verdict": "fail", "findings": [FINDING]}]}],
}  # fmt: skip


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(place for key, value in inside for place in places(value, (*at, key)))]


def changed(document: Any, at: Sequence[Any], value: Any) -> Any:
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = changed(document[at[0]], at[1:], value)
    return copy


def run_folder(base: str, result: bytes | None) -> Path:
    run = Path(base) / "20261121-100000-bbbbbb"
    (run / "logs").mkdir(parents=True)
    (run / "events.jsonl").write_text("{}\n")
    (run / "logs" / "rank-00000.a.log").write_text("step 1 loss 2.0\n")
    if result is not None:
        (run / "result.json").write_bytes(result)
    return run


@EXAMPLES
@given(st.sampled_from(places(RESULT)), JSON)
def test_a_result_that_was_changed_anywhere(at: tuple[Any, ...], value: Any) -> None:
    with tempfile.TemporaryDirectory() as base:
        run_folder(base, json.dumps(changed(RESULT, at, value)).encode())
        ends(base)


@examples(60)
@given(st.floats(0, 1, exclude_max=True))
def test_a_result_that_is_cut_is_never_healthy(share: float) -> None:
    for verdict in ("pass", "fail"):
        whole = json.dumps({**RESULT, "verdict": verdict, "causes": [], "stages": []}, indent=2).encode()
        with tempfile.TemporaryDirectory() as base:
            assert ends(run_folder(base, whole[: int(share * len(whole))])) == 1
        with tempfile.TemporaryDirectory() as base:
            assert ends(run_folder(base, whole)) == (0 if verdict == "pass" else 1)


@pytest.mark.parametrize(
    "result",
    [
        None,
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"verdict": ' + b"7" * 5000 + b"}",
        b"7",
        b"null",
        b'{"verdict": "pass"}',
        b" " * 17_000_000,
    ],
)
def test_a_result_that_is_none(tmp_path: Path, result: bytes | None) -> None:
    assert ends(run_folder(str(tmp_path), result)) == 1


DUMP: dict[str, Any] = {
    "version": "2.10",
    "pg_status": {"0": {"last_enqueued_collective": "5", "last_completed_collective": "4"}},
    "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}},
    "entries": [{"collective_seq_id": 5, "profiling_name": "gloo:all_reduce", "input_sizes": [[256]], "input_dtypes": ["Float"], "is_p2p": False,
                 "pg_id": 0, "process_group": ["0", "default_pg"], "state": "scheduled", "retired": False}],
}  # fmt: skip


@EXAMPLES
@given(st.sampled_from([place for place in places(DUMP) if place]), JSON)
def test_a_flight_recorder_that_was_changed_anywhere(at: tuple[Any, ...], value: Any) -> None:
    said = {"rank": 0, "calls": 0, "calling": None, "recorded": None, "flight": changed(DUMP, at, value)}
    with contextlib.suppress(UnexpectedAnswer):
        compare_dumps({0: node_answers.decode_flight_record(json.dumps(said).encode())["flight"] or {}, 1: DUMP})


@given(st.text("0123456789", min_size=1, max_size=6000))
def test_numbers_are_read_as_far_as_they_can_be_reckoned_with(text: str) -> None:
    assert parse_number(text) == (int(text) if len(text) < 15 else parse_number(text)) <= MAX_NUMBER
    assert parse_small_number(text) in (None, int(text[:15]))


def test_numbers_of_other_scripts() -> None:
    assert parse_number("٣") == parse_small_number("٣") == 3
    assert parse_small_number("") is parse_small_number(None) is parse_small_number("7" * 10) is None
