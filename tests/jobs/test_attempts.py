"""A launch judged without any node: attempts, journals, endings, tails of logs, causes, and whether to try again."""

from __future__ import annotations

import json
import random
import shlex
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from checks.made_up_cluster import cluster, node, with_ports

from runbook.causes.catalogue import cause_pages as known_causes
from runbook.causes.catalogue import causes_of_kind
from runbook.checks.context import Facts
from runbook.jobs import launch, start, stop_attempt
from runbook.jobs.attempt import ProcessSpec, attempt_port, job_description
from runbook.jobs.failure import judge_attempt
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses, wait_until_done
from runbook.jobs.launch import Launch, RunningAttempt
from runbook.jobs.logs import MAX_LOG_LINE_BYTES, RankLogs
from runbook.jobs.retry import FIRST_RETRY_INTERVAL_S, JITTER, MAX_RETRY_INTERVAL_S, decide_retry
from runbook.jobs.start import (
    KEEPER_KILL_TIMEOUT_S,
    _gpu_busy_finding,
    _named_python_files,
    _program_file_outcomes,
    unlike_modules,
    wait_until_running,
)
from runbook.jobs.stop_attempt import end_processes, fetch_rest_of_logs
from runbook.jobs.watch import WatchEnd, first_failed_process, store_answer, watch_processes
from runbook.launch.launchers import nested_launcher_line
from runbook.model.errors import Unreachable
from runbook.model.redact import Redactor
from runbook.model.secrets import Secret
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.transport.remote_program import MESSAGE_MARK

from .made_up_attempts import PAIR, attempt, come, ended, job, journal, kept, place, wrote

LOST = Unreachable("ssh-unreachable", "no answer for 6 s", "look at node-b")


# Attempts: ports, names of files, what is written down.


def test_the_first_try_has_the_inventorys_port_and_each_later_one_another() -> None:
    ports = [attempt_port(PAIR, number) for number in range(1, 6)]
    assert ports[0] == 29500
    assert len(set(ports)) == 5


def test_later_ports_are_first_those_that_are_promised_to_be_open() -> None:
    inventory = with_ports(PAIR, (29500, 29502))
    assert [attempt_port(inventory, number) for number in range(1, 4)] == [29500, 29501, 29502]
    assert len({attempt_port(inventory, number) for number in range(1, 9)}) == 8


def test_no_port_is_above_the_last_one() -> None:
    inventory = cluster(port=65535)
    assert {attempt_port(inventory, number) for number in range(1, 5)} == {65535}


def test_every_try_has_a_token_of_its_own() -> None:
    assert len({attempt(1).token for _ in range(20)}) == 20


def test_direct_keeps_each_rank_and_torchrun_a_launcher_a_node() -> None:
    assert [one.label for one in attempt().places] == [
        *("rank 0 on node-a", "rank 1 on node-a", "rank 2 on node-b", "rank 3 on node-b")
    ]
    assert [(one.name, one.ranks) for one in attempt(launcher="torchrun").places] == [
        ("ranks-00000-00001.node-a.launcher", (0, 1)),
        ("ranks-00002-00003.node-b.launcher", (2, 3)),
    ]


def test_what_is_written_down_for_who_comes_later() -> None:
    inventory = cluster(node("node-a", gpus=(0, 1)), node("node-b", gpus=(0,)), backend="nccl")
    tried = attempt(2, inventory, grace_s=90.0)
    told = job_description(tried, "node-a", {"job": "job-1"})
    assert (told["job"], told["attempt"], told["grace_s"]) == ("job-1", 2, 90.0)
    assert told["port"] == tried.port != 29500
    assert told["gpus"] == [0, 1]
    assert told["nodes"] == {"node-a": [0, 1], "node-b": [2]}
    json.dumps(told)


# Preparing.


def test_python_files_of_a_command_are_compared() -> None:
    def words(*command: str) -> list[str]:
        return [source.word for source in _named_python_files(command)]

    assert words("python", "-m", "train.py", "--config=x.py", "lib/data.py") == ["train.py", "lib/data.py"]
    assert words("bash", "-lc", "exec python train.py", "x.py") == ["x.py"]
    assert words("python", "main.py", "trainer.entry=src/model.py", "--config", "c.py") == ["main.py", "c.py"]
    assert words("env", "CONFIG=/etc/run.py", "python", "train.py") == ["train.py"]
    assert words("export.py", "--output", "generated.py", "-o", "x.py") == ["export.py"]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (("train.py", "data.py"), "train.py"),
        (("python3.11", "-u", "-OO", "train.py", "data.py"), "train.py"),
        (("numactl", "-N", "0", "/venv/bin/python", "train.py"), "train.py"),
        (("python", "-m", "package.train", "data.py"), None),
        (("python", "-c", "import x", "data.py"), None),
        (("mytool", "--config", "data.py"), None),
        (("torchrun", "--standalone", "train.py"), None),
    ],
)
def test_only_of_the_program_itself_it_is_known_that_it_has_to_be_there(
    command: tuple[str, ...], program: str | None
) -> None:
    assert [source.word for source in _named_python_files(command) if source.runs] == ([program] if program else [])


def answer(**facts: Any) -> Facts:
    return {"alive": [], "gpus": [], "sha256": {}, "files": {}, **facts}


def test_a_rank_of_an_earlier_try_is_in_the_way() -> None:
    assert _gpu_busy_finding("node-a", answer()) is None
    old = {"name": "rank-00000.node-a.l0", "attempt": 1, "pid": 7, "keeper": 6, "job": "job-1"}
    finding = _gpu_busy_finding("node-a", answer(alive=[old]))
    assert finding is not None
    assert (finding.cause, finding.remedy) == ("gpu-busy", "runbook stop job-1")
    assert "node-a" in finding.says


def test_another_job_on_our_gpus_is_in_the_way() -> None:
    other = {"name": "rank-00000.node-a.l0", "job": "job-0", "gpus": [0, 3], "pid": 9}
    finding = _gpu_busy_finding("node-a", answer(gpus=[other]))
    assert finding is not None
    assert "GPU 0, 3 of node-a" in finding.says
    assert "runbook stop job-0" in finding.remedy


def test_a_program_that_is_not_there_and_one_that_differs() -> None:
    same, other = "a" * 64, "b" * 64
    told = {
        "node-a": answer(sha256={"/srv/train.py": same}),
        "node-b": answer(sha256={"/srv/train.py": other}),
        "node-c": answer(sha256={"/srv/train.py": same}),
        "node-d": answer(sha256={"/srv/train.py": None}),
    }
    problems = _program_file_outcomes(told)
    assert {name: one.findings[0].cause for name, one in problems.items()} == {
        "node-b": "program-differs",
        "node-d": "program-error",
    }
    assert _program_file_outcomes({"node-a": told["node-a"], "node-c": told["node-c"]}) == {}


def test_a_module_that_differs_on_one_node_is_a_warning_and_one_that_it_lacks_is_none() -> None:
    told = {
        name: answer(beside={"/srv/model.py": found, **more})
        for name, found, more in (
            ("node-a", "a" * 64, {"/srv/data.py": "c" * 64}),
            ("node-b", "b" * 64, {}),
            ("node-c", "a" * 64, {}),
        )
    }
    ((name, finding),) = unlike_modules(told)
    assert (name, finding.cause, finding.peers) == ("node-b", "program-differs", ("node-a", "node-c"))
    assert "/srv/model.py, which the program imports, is another file on node-b than on node-a, node-c" in finding.says
    assert list(unlike_modules({"node-a": answer(), "node-b": answer()})) == []


@pytest.mark.parametrize(
    ("command", "there", "failed"),
    [
        (("train.py",), (None, None), ["node-a", "node-b"]),
        (("train.py",), ("a" * 64, None), ["node-b"]),
        (("tool", "config.py"), (None, None), []),
        (("tool", "config.py"), ("a" * 64, None), ["node-b"]),
        (("tool", "--to", "made.py"), ("a" * 64, None), []),
        (("tool", "--config", "config.py"), ("a" * 64, "b" * 64), ["node-b"]),
    ],
)
def test_who_lacks_a_file_that_may_be_made_later_is_not_accused(
    command: tuple[str, ...], there: tuple[str | None, ...], failed: list[str]
) -> None:
    (source,) = _named_python_files(command)
    told = {
        name: answer(sha256={source.word: found}, files={source.word: source})
        for name, found in zip(("node-a", "node-b"), there, strict=True)
    }
    assert sorted(_program_file_outcomes(told)) == failed


# Getting ready.


class Nodes:
    """Sessions of nodes that prepare, and whose keepers say what `keepers` makes of them."""

    def __init__(self, made: KeptProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = made
        self.begun: list[str] = []
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        for name in made.nodes:
            made.at.run.site.sessions[name] = self.session(name)
        monkeypatch.setattr(start, "_prepare_node", lambda *_: answer())
        monkeypatch.setattr(start, "_held_port_outcome", lambda *_: {})

    def session(self, name: str) -> Any:
        def begin(argv: list[str], *, on_message: Any, **_: Any) -> Any:
            if name in self.lost:
                raise LOST
            self.begun.append(name)
            if name not in self.silent:
                on_message(journal("waiting"))
            return SimpleNamespace(lost=None, error=None)

        return SimpleNamespace(folder="/work", hello={"executable": "python3"}, start=begin, lost=None)

    def prepare(self, ready_s: float = 30.0) -> dict[str, Outcome]:
        return start.prepare(self.made, attempt(), ready_s=ready_s, facts={})


def test_a_node_that_is_lost_while_keepers_are_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(kept(tmp_path), monkeypatch)
    nodes.lost.add("node-b")
    problems = nodes.prepare()
    assert list(problems) == ["node-b"]
    assert (problems["node-b"].verdict, problems["node-b"].findings[0].cause) == (Verdict.UNKNOWN, LOST.cause)
    assert nodes.begun == ["node-a", "node-a"], "which are ended by their remotes"
    assert all(member.over for member in nodes.made.on("node-b")), "nothing is waited for there"


def test_who_was_not_waited_for_because_the_user_stops_is_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(kept(tmp_path), monkeypatch)
    nodes.silent.add("node-b")
    late = nodes.prepare(ready_s=0.1)
    assert {name: one.findings[0].cause for name, one in late.items()} == {"node-b": "ranks-missing"}
    nodes = Nodes(kept(tmp_path), monkeypatch)
    nodes.silent.add("node-b")
    nodes.made.at.stopping.set()
    stopped = nodes.prepare()
    assert {(one.node, one.verdict, one.findings[0].cause) for one in stopped.values()} == {
        ("node-a", Verdict.UNKNOWN, "terminated-from-outside"),
        ("node-b", Verdict.UNKNOWN, "terminated-from-outside"),
    }


def test_a_node_that_is_lost_before_the_start_is_named_and_nothing_is_left_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> tuple[float, float]:
        return 0.0, 0.001

    def lost() -> tuple[float, float]:
        raise LOST

    made = kept(tmp_path)
    tried = RunningAttempt(made.at, attempt())
    sessions = made.at.run.site.sessions
    sessions.update(
        {"node-a": cast(Any, SimpleNamespace(clock=clock)), "node-b": cast(Any, SimpleNamespace(clock=lost))}
    )
    made.at.run.site.keep = False
    monkeypatch.setattr(launch, "prepare", lambda *_, **__: {})
    cleaned: list[str] = []
    monkeypatch.setattr(stop_attempt, "clean", lambda _, names: cleaned.extend(names))
    told = {one.node: (one.verdict, one.findings[0].cause) for one in tried.run()}
    assert told == {"node-a": (Verdict.UNKNOWN, "peer-died"), "node-b": (Verdict.UNKNOWN, LOST.cause)}
    assert cleaned == ["node-a", "node-b"]


# Logs.


def heard(folder: Path, *secrets: str) -> tuple[RankLogs, list[tuple[str, list[str]]], list[Facts]]:
    said: list[tuple[str, list[str]]] = []
    stops: list[Facts] = []
    logs = RankLogs(
        folder,
        "attempt-01",
        Redactor([Secret(text, "TOKEN") for text in secrets]),
        lambda _, stream, lines: said.append((stream, lines)),
        lambda _, event: stops.append(dict(event)),
    )
    return logs, said, stops


def test_a_line_is_told_once_it_is_whole_and_no_byte_is_lost(tmp_path: Path) -> None:
    logs, said, _ = heard(tmp_path)
    text = "ä first\nsecond\nwithout an end".encode()
    for byte in range(len(text)):
        come(logs, "rank-00000.node-a.l0.out", text[byte : byte + 1])
    assert [line for _, lines in said for line in lines] == ["ä first", "second"]
    assert logs.at("rank-00000.node-a.l0.out") == len(text)
    logs.close()
    assert said[-1] == ("out", ["without an end"])
    assert (logs.folder / "rank-00000.node-a.l0.out").read_bytes() == text


def test_who_wrote_a_line_that_never_ends_is_told_with_it(tmp_path: Path) -> None:
    told: list[tuple[ProcessSpec, list[str]]] = []
    logs = RankLogs(tmp_path, "attempt-01", Redactor([]), lambda voice, _, lines: told.append((voice, lines)))
    voice = place(3, "node-b")
    come(logs, f"{voice.name}.out", b"the last words", voice)
    logs.close()
    assert told == [(voice, ["the last words"])]


def test_bytes_that_come_twice_count_once(tmp_path: Path) -> None:
    logs, said, _ = heard(tmp_path)
    for begin, data in ((0, b"one\ntw"), (0, b"one\ntwo\n"), (4, b"two\nthree\n"), (0, b"one\n")):
        logs.take(place(0), "x.out", data, begin)
    assert (logs.folder / "x.out").read_text() == "one\ntwo\nthree\n"
    assert [line for _, lines in said for line in lines] == ["one", "two", "three"]


def test_bytes_that_are_no_text_are_kept_as_they_are(tmp_path: Path) -> None:
    logs, _, _ = heard(tmp_path)
    come(logs, "x.err", b"\xff\xfe\x00broken\n")
    assert (logs.folder / "x.err").read_bytes() == b"\xff\xfe\x00broken\n"


def test_a_line_that_never_ends_is_passed_on_in_pieces(tmp_path: Path) -> None:
    logs, said, _ = heard(tmp_path)
    come(logs, "x.err", b"\r" + b"#" * (MAX_LOG_LINE_BYTES + 5))
    assert sum(len(line) for _, lines in said for line in lines) == MAX_LOG_LINE_BYTES + 6


def test_a_secret_is_masked_on_screen_and_in_the_file(tmp_path: Path) -> None:
    logs, said, _ = heard(tmp_path, "hunter22", "hunter22-long")
    come(logs, "x.out", b"token=hunter")
    come(logs, "x.out", b"22-long and hunter22\n")
    assert said == [("out", ["token=*** and ***"])]
    assert (logs.folder / "x.out").read_text() == "token=*** and ***\n"
    assert logs.at("x.out") == len(b"token=hunter22-long and hunter22\n"), "offsets are those of the node's file"


def test_why_a_script_stopped_is_an_event_and_no_line(tmp_path: Path) -> None:
    logs, said, stops = heard(tmp_path)
    come(logs, "x.err", MESSAGE_MARK + b'{"event": "program-missing"}\n' + MESSAGE_MARK + b"no json\nplain\n")
    assert stops == [{"event": "program-missing"}]
    assert said == [("err", ["plain"])]


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs, said, _ = heard(tmp_path / "file" / "logs")
    come(logs, "x.out", b"one\n")
    assert said == [("out", ["one"])]
    assert list(logs.unwritten) == ["node-a"]


# What is known of processes.


def test_times_are_of_the_controllers_clock(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.offsets["node-b"] = (5.0, 0.01)
    member = ended(made, 2, 0, 205.0, began=105.0)
    assert (member.started, member.ended) == (100.0, 200.0)


def test_an_older_journal_says_nothing(tmp_path: Path) -> None:
    made = kept(tmp_path)
    member = ended(made, 0, 1, 101.0)
    made.learn(member, journal("running", started=100.0))
    assert (member.state, member.code, member.failed) == ("ended", 1, True)


def test_a_node_that_is_lost_loses_only_what_had_not_ended(tmp_path: Path) -> None:
    made = kept(tmp_path)
    done = ended(made, 2, 0, 101.0)
    made.lose("node-b", LOST)
    assert (done.lost, done.failed) == (None, False)
    assert [member.failed for member in made.members] == [False, False, False, True]


class Gone:
    """A keeper's conversation that is over."""

    def __init__(self, lost: Unreachable | None = None) -> None:
        self.lost = lost


@pytest.mark.parametrize(("remote", "keeper_gone"), [(Gone(), True), (Gone(LOST), False)])
def test_a_keeper_that_is_gone_is_no_lost_node(tmp_path: Path, remote: Any, keeper_gone: bool) -> None:
    made = kept(tmp_path)
    member = made.members[0]
    member.remote = remote
    made.news.put((member, None))
    assert made.take_news(0.0)
    assert member.keeper_gone is keeper_gone
    assert (member.lost is None) is keeper_gone
    assert member.failed


def test_a_keeper_that_ends_after_its_process_is_as_it_should_be(tmp_path: Path) -> None:
    made = kept(tmp_path)
    member = ended(made, 0, 0, 101.0)
    member.remote = Gone()  # type: ignore[assignment]
    made.news.put((member, None))
    made.take_news(0.0)
    assert not member.failed


def test_waiting_has_an_end(tmp_path: Path) -> None:
    assert not wait_until_done(kept(tmp_path), lambda: False, 0.0)
    assert wait_until_running(kept(tmp_path), 0.0) is None, "no skew where not all came to run"


def test_the_skew_is_told_once_all_run(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.offsets = {"node-a": (0.0, 0.002), "node-b": (-3.0, 0.005)}
    for member in made.members:
        started = 100.0 if member.place.node == "node-a" else 97.04
        made.learn(member, journal("running", started=started))
    skew = wait_until_running(made, 0.0)
    assert skew is not None
    assert (round(skew.seconds, 6), skew.doubt) == (0.04, 0.005)
    assert str(skew) == "within 40 ms (± 5 ms)"


def test_what_a_node_answers_goes_to_logs_and_journals(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.offsets["node-a"] = (5.0, 0.1)
    name = made.members[0].place.name
    store_answer(
        made,
        "node-a",
        {
            "seen": [[f"{name}.out", 10, 105_500_000_000], [f"{name}.json", 70, 1], ["stranger.out", 3, 1]],
            "read": {f"{name}.out": b"hi\n", "stranger.out": b"hi\n"},
            "size": {f"{name}.out": 10},
            "steps": {},
            "kept": [{"name": name, "state": "running", "started": 100.0}, {"name": "stranger"}],
        },
        {},
    )
    assert made.unread["node-a"] == 7
    assert made.written == {f"{name}.out": 100.5}, "by the controller's clock"
    made.take_news(0.0)
    assert made.members[0].state == "running"
    assert (made.logs.folder / f"{name}.out").read_text() == "hi\n"


# How watching ends.


def watched(made: KeptProcesses, *, stopping: bool = False, left_s: float = 60.0) -> WatchEnd:
    return watch_processes(made, stopping=lambda: stopping, deadline=time.monotonic() + left_s)


def test_all_ended_with_code_0(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for rank in range(4):
        ended(made, rank, 0, 101.0)
    assert watched(made, stopping=True).kind == "finished"


def test_the_first_failure_is_the_earliest_by_one_clock(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.offsets["node-b"] = (1000.0, 0.001)
    ended(made, 0, 1, 102.0)
    ended(made, 1, 1, 103.0)
    first = ended(made, 2, 1, 1101.0, began=1100.0)
    ended(made, 3, -6, 1104.0, began=1100.0)
    found = watched(made)
    assert (found.kind, found.first) == ("failed", first)


def test_a_lost_node_is_the_first_only_where_nothing_else_failed(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.lose("node-b", LOST)
    assert first_failed_process(made.members).place.node == "node-b"
    crashed = ended(made, 0, -11, 101.0)
    assert first_failed_process(made.members) is crashed


def test_somebody_wants_it_to_stop_or_the_time_is_up(tmp_path: Path) -> None:
    assert watched(kept(tmp_path), stopping=True).kind == "stopped"
    assert watched(kept(tmp_path), left_s=-1.0).kind == "late"


def test_a_failure_is_told_before_the_end_of_time(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for rank in range(4):
        ended(made, rank, 1 if rank == 3 else 0, 101.0)
    assert watched(made, stopping=True, left_s=-1.0).kind == "failed"


# Ending: what was not seen to end is not certain.


def test_nodes_that_do_not_answer_are_not_certain(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.lose("node-b", LOST)
    for rank in (0, 1):
        ended(made, rank, -15, 101.0)
    assert end_processes(made, grace_s=0.0, why="over") == ["node-a", "node-b"]
    assert fetch_rest_of_logs(made) == ["node-a", "node-b"], "and a part of their logs is still there"


# Causes.


def judged(made: KeptProcesses, first: KeptProcess, frozen: dict[str, Facts] | None = None) -> tuple[Outcome, Finding]:
    """The guilty outcome and what it says; of every other node nothing is proven, and it says because of whom."""
    outcomes = judge_attempt(made, WatchEnd("failed", first), frozen or {})
    assert [outcome.node for outcome in outcomes] == list(made.nodes)
    (guilty,) = [outcome for outcome in outcomes if outcome.findings[0].cause != "peer-died"]
    for other in outcomes:
        if other is not guilty:
            assert (other.verdict, other.findings[0].peers) == (Verdict.UNKNOWN, (guilty.node,))
    assert guilty.findings[0].cause in known_causes()
    return guilty, guilty.findings[0]


def test_an_exit_code_with_the_last_line_and_the_way_to_the_log(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 1, 3, 101.5)
    wrote(made, first, err=b"one\n\nthe config has no key lr\n", out=b"step 1\n")
    guilty, finding = judged(made, first)
    assert (guilty.verdict, guilty.node, finding.cause) == (Verdict.FAIL, "node-a", "program-error")
    assert finding.says == "rank 1 on node-a exited with code 3 after 1.5 s: the config has no key lr"
    assert f"less {made.logs.folder}/" in finding.remedy
    assert finding.evidence[:2] == ("one", "the config has no key lr")


def test_a_rank_that_wrote_nothing_is_said_to_have(tmp_path: Path) -> None:
    made = kept(tmp_path)
    _, finding = judged(made, ended(made, 0, 1, 101.0))
    assert finding.says.endswith("it printed nothing")


def test_the_tail_is_short_and_its_secrets_are_masked(tmp_path: Path) -> None:
    made = kept(tmp_path, secrets=["hunter22"])
    first = ended(made, 0, 1, 101.0)
    wrote(made, first, err=b"".join(b"line %d of hunter22\n" % number for number in range(3000)))
    _, finding = judged(made, first)
    tail = [line for line in finding.evidence if line.startswith("line")]
    assert tail == [f"line {number} of ***" for number in range(2992, 3000)]
    assert "hunter22" not in repr(finding)


def test_without_errors_the_tail_is_that_of_the_ordinary_output(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 2, 101.0)
    wrote(made, first, out=b"usage: train.py [--lr LR]\n")
    assert "usage: train.py" in judged(made, first)[1].says


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        (-signal.SIGKILL, "rank-killed", "was killed (signal 9, SIGKILL)"),
        (128 + signal.SIGKILL, "rank-killed", "signal 9"),
        (-signal.SIGTERM, "terminated-from-outside", "SIGTERM"),
        (-signal.SIGINT, "terminated-from-outside", "SIGINT"),
        (-signal.SIGHUP, "terminal-closed", "SIGHUP"),
        (-signal.SIGSEGV, "rank-crashed", "crashed (signal 11, SIGSEGV)"),
        (-signal.SIGBUS, "rank-crashed", "SIGBUS"),
        (-signal.SIGUSR1, "rank-killed", "ended by a signal"),
        (-70, "rank-killed", "signal 70"),
        (255, "program-error", "code 255"),
    ],
)
def test_how_it_ended_has_a_cause(tmp_path: Path, code: int, cause: str, words: str) -> None:
    made = kept(tmp_path)
    guilty, finding = judged(made, ended(made, 2, code, 101.0))
    assert (guilty.node, finding.cause) == ("node-b", cause)
    assert words in finding.says


def test_that_the_kernel_killed_it_for_memory_is_known_from_its_count(tmp_path: Path) -> None:
    for group, others, words, evidence in (
        (1, 1, "by the kernel for lack of memory", "of its control group: 1 process killed"),
        (0, 2, "was killed (signal 9", "/proc/vmstat of node-b: 2 processes killed"),  # of another program, or its own
        (None, 1, "was killed (signal 9", "/proc/vmstat of node-b: 1 process killed"),
        (0, 0, "was killed (signal 9", ""),
        (None, None, "was killed (signal 9", ""),
    ):
        made = kept(tmp_path / f"{group}-{others}")
        kills = {"group_kills": group, "node_kills": others}
        made.learn(made.members[3], journal("ended", code=-9, started=100.0, ended=105.0, **kills))
        (outcome,) = [
            one for one in judge_attempt(made, WatchEnd("failed", made.members[3]), {}) if one.verdict is Verdict.FAIL
        ]
        (finding,) = outcome.findings
        assert (outcome.node, finding.cause) == ("node-b", "rank-killed")
        assert words in finding.says
        assert evidence in finding.evidence[0]
        assert ("oom_kill" in finding.evidence[0]) is bool(evidence)


def test_what_the_kernel_says_of_a_kill_is_evidence(tmp_path: Path) -> None:
    made = kept(tmp_path)
    kernel = {"node-a": {"kernel_says": ["Out of memory: Killed process 7 (python3)"]}}
    _, finding = judged(made, ended(made, 0, -9, 101.0), kernel)
    assert "Out of memory" in finding.evidence[0]


def test_what_the_logs_tell_goes_before_a_mere_exit_code(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    wrote(
        made,
        first,
        err=b"Traceback (most recent call last):\n"
        b'  File "/srv/train.py", line 3, in <module>\n    import nothing_like_this\n'
        b"ModuleNotFoundError: No module named 'nothing_like_this'\n",
    )
    _, finding = judged(made, first)
    assert "nothing_like_this" in finding.says
    assert decide_retry([finding.cause], 5).again is False


def test_whom_somebody_ended_is_not_explained_by_what_the_others_saw_of_it(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, -9, 101.0)
    other = ended(made, 2, 1, 101.4)
    wrote(made, other, err=b"RuntimeError: [1] Connection closed by peer [10.0.0.1]:34567\n")
    guilty, finding = judged(made, first)
    assert (guilty.node, finding.cause) == ("node-a", "rank-killed")


def test_later_deaths_are_told_as_what_followed(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, -9, 101.0)
    ended(made, 1, 0, 101.0)
    ended(made, 2, 1, 101.4)
    ended(made, 3, -15, 102.0, why="rank 0 on node-a failed")
    _, finding = judged(made, first)
    followed = [line for line in finding.evidence if line.startswith("then ")]
    assert followed == [
        "then rank 2 on node-b: exit 1 0.4 s later",
        "then rank 3 on node-b: ended by runbook 1.0 s later",
    ]
    assert finding.evidence[-1] == f"logs: {made.logs.folder}"


def test_a_lost_node_is_unknown_and_never_blamed_for_more(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.lose("node-b", LOST)
    guilty, finding = judged(made, made.members[2])
    assert (guilty.verdict, guilty.node, finding.cause) == (Verdict.UNKNOWN, "node-b", "ssh-unreachable")


def test_a_keeper_that_was_killed_is_no_fault_of_the_program(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.members[0].keeper_gone = True
    assert judged(made, made.members[0])[1].cause == "terminated-from-outside"


def test_a_node_that_was_restarted_is_told_from_a_keeper_that_was_killed(tmp_path: Path) -> None:
    """By the node: its journal goes on saying that the rank runs."""
    made = kept(tmp_path)
    made.offsets["node-b"] = (3600.0, 0.1)
    member = made.members[2]
    seen = {"keeper_lives": False, "lives": False, "restarted": 1_000_003_600.0}
    made.learn(member, journal("running", started=999_000_000.0, **seen))
    made.learn(member, journal("running", started=999_000_000.0))  # from a node that was not asked to look
    guilty, finding = judged(made, member)
    assert (guilty.node, finding.cause) == ("node-b", "terminated-from-outside")
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_000_000_000.0))
    assert finding.says == f"node-b was restarted while rank 2 on node-b ran: it is up since {shown}"
    assert "journalctl -b -1" in finding.remedy


@pytest.mark.parametrize(
    ("why", "cause"),
    [("barrier: node-b did not come within 30 s", "ranks-missing"), (None, "terminated-from-outside")],
)
def test_one_that_never_started(tmp_path: Path, why: str | None, cause: str) -> None:
    made = kept(tmp_path)
    member = made.members[0]
    made.learn(member, journal("ended", why=why, ended=101.0))
    assert judged(made, member)[1].cause == cause


@pytest.mark.parametrize("event", ["activation-failed", "program-missing", "something-new"])
def test_a_script_that_stopped_says_why(tmp_path: Path, event: str) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 100.1)
    first.stop = {"event": event, "code": 1}
    wrote(made, first, err=b"node-a: no program `train` was found\n")
    _, finding = judged(made, first)
    assert finding.cause == ("activation-failed" if event == "activation-failed" else "program-error")


TORCHRUN = b"E failed (exitcode: %d) local_rank: %d (pid: 77) of binary: /usr/bin/python\n"


def test_of_a_launcher_the_rank_is_named_that_it_saw_end(tmp_path: Path) -> None:
    made = kept(tmp_path, attempt(launcher="torchrun"))
    first = ended(made, 0, 1, 101.0)
    wrote(made, first, err=TORCHRUN % (3, 1))
    wrote(made, first.place.each[1], err=b"the config has no key lr\n")
    _, finding = judged(made, first)
    assert finding.says == "rank 1 on node-a exited with code 3 after 1.0 s: the config has no key lr"


def test_a_launcher_whose_rank_was_killed_goes_before_one_whose_rank_saw_it(tmp_path: Path) -> None:
    made = kept(tmp_path, attempt(launcher="torchrun"))
    first, killed = ended(made, 0, 1, 101.0), ended(made, 2, 1, 101.6)
    wrote(made, first, err=TORCHRUN % (1, 0))
    wrote(made, killed, err=TORCHRUN % (-9, 0))
    guilty, finding = judged(made, first)
    assert (guilty.node, finding.cause) == ("node-b", "rank-killed")


def test_a_folder_that_only_its_own_node_sees_is_not_shared(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for member in made.members:
        met = [member.place.node]
        why = "barrier: node-b did not come within 30 s"
        made.learn(member, journal("ended", why=why, ended=101.0, met=met, barrier="/local/barrier/job-1.x"))
    guilty, finding = judged(made, made.members[0])
    assert (guilty.node, finding.cause) == ("node-b", "ranks-missing")
    assert "/local/barrier on node-b is not the folder of that name on node-a" in finding.says


# Trying again.


@pytest.mark.parametrize("cause", sorted(causes_of_kind("transient")))
def test_what_may_be_gone_is_tried_again(cause: str) -> None:
    assert decide_retry([cause], 1).again


@pytest.mark.parametrize("cause", sorted(known_causes().keys() - causes_of_kind("transient") - causes_of_kind("once")))
def test_what_would_be_the_same_again_is_not(cause: str) -> None:
    decision = decide_retry([cause], 5)
    assert not decision.again
    assert cause in decision.why


@pytest.mark.parametrize("cause", sorted(causes_of_kind("once")))
def test_chance_does_not_come_twice(cause: str) -> None:
    assert decide_retry([cause], 5).again
    assert not decide_retry([cause, cause], 5).again
    assert decide_retry([cause, "port-in-use", cause], 5).again, "not the same twice in a row"


def test_without_retries_nothing_is_said_of_them() -> None:
    decision = decide_retry(["port-in-use"], 0)
    assert (decision.again, decision.why) == (False, "")


def test_retries_are_used_up() -> None:
    causes = ["port-in-use", "packet-loss", "port-in-use"]
    assert [decide_retry(causes[:made], 2).again for made in (1, 2, 3)] == [True, True, False]
    assert decide_retry(causes, 2).why == "tried 3 times"


def test_waits_double_up_to_a_limit_and_no_two_jobs_come_back_at_one_moment() -> None:
    for made in range(1, 12):
        plain = min(MAX_RETRY_INTERVAL_S, FIRST_RETRY_INTERVAL_S * 2 ** (made - 1))
        waits = {decide_retry(["port-in-use"] * made, 100, chance=random.Random(seed)).after_s for seed in range(50)}
        assert len(waits) > 40
        assert min(waits) >= plain * (1 - JITTER)
        assert max(waits) <= plain * (1 + JITTER)
        assert min(waits) < plain < max(waits)


# The stage.


def test_how_long_a_node_that_fell_silent_may_go_on() -> None:
    assert Launch(job=job(grace_s=120.0)).outlives_s == 10.0 + 120.0 + KEEPER_KILL_TIMEOUT_S
    assert Launch(job=job(detach=True)).outlives_s == float("inf")


def test_what_was_stopped_and_perhaps_lives_on_is_followed_where_it_may_outlive_its_run(tmp_path: Path) -> None:
    for detach in (True, False):
        tried = attempt(detach=detach)
        running = RunningAttempt(kept(tmp_path, tried).at, tried)
        stopped = [running._broken_off(WatchEnd("stopped"), name, ["node-b"]) for name in ("node-a", "node-b")]
        assert [one.verdict for one in stopped] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
        assert [one.metrics for one in stopped] == [{}, {"job": "job-1"} if detach else {}]


@pytest.mark.parametrize(
    ("command", "nested"),
    [
        ("torchrun --nproc_per_node=2 train.py", True),
        ("bash -c 'torchrun --standalone train.py'", True),
        ("torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 train.py", False),
        ("python train.py", False),
        ("accelerate launch train.py", False),  # its default file may name them
        ("mpirun train.py", False),
    ],
)
def test_a_launcher_that_knows_of_no_other_machine_makes_worlds_of_their_own(command: str, nested: bool) -> None:
    words = shlex.split(command)
    assert (nested_launcher_line(job(command=words), PAIR.nodes) is not None) == nested
    assert nested_launcher_line(job(command=words), PAIR.nodes[:0]) is None
    assert nested_launcher_line(job(command=words, launcher="torchrun"), PAIR.nodes) is None
    assert nested_launcher_line(job(command=words, env={"PET_NODE_RANK": "0"}), PAIR.nodes) is None
