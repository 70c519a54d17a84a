"""What a hostile node, a hostile run folder and a hostile `--run-dir` can do to the archive of `collect`: nothing but be
left out."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from profiles import examples

from runbook.cli.main import main
from runbook.collect.archive import Absent, ArchiveFile, UsedPaths, archive_files, pack_archive, path_refusal
from runbook.collect.ask_nodes import MAX_NODE_CHARACTERS, NodeAnswer, record_answer, record_failure
from runbook.collect.gather import scrub_entries
from runbook.collect.local_files import read_collected_run, run_entries
from runbook.collect.pseudonyms import SYSTEM_ACCOUNTS
from runbook.collect.scrub import Scrubber
from runbook.model.errors import Unreachable
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.node_answers import Collected, decode_answer
from runbook.transport.remote_program import ProgramNotStarted

GOOD = {"name": "system/uname", "command": "uname -a", "status": "ok", "code": 0, "seconds": 0.1, "out": "Linux\n", "err": "", "left_out": 0}  # fmt: skip
ANSWER = {"answers": [GOOD], "user": "me", "users": [["me", "/home/me", ""]], "hostnames": ["node-b"], "seconds": 0.5}

NAMES = st.one_of(
    st.sampled_from(
        [
            "../../README.txt", "/etc/passwd", "a/../../b", "..", ".", "", "a//b", "./a", "system/uname", "SYSTEM/UNAME",
            "System/Uname", "a\0b", "a\nb", "\x1b[2Ja", "a\u202eb", "C:\\x", "a\\..\\b", "a:b", "nul", "con.txt", "~root", "-rf",
            ".ssh/authorized_keys", "a" * 5000, "a/" * 300 + "b", "python", "python.txt", "python.txt/x", "manifest.json",
            "../node-a/system/uname", "gpu/nvidia-smi", "\ud800", "system/uname.txt", "x.", "x ", "..%2f", "system",
        ]
    ),
    st.text(max_size=20),
    st.lists(st.sampled_from(["..", ".", "a", "", "system", "nodes"]), max_size=6).map("/".join),
)  # fmt: skip
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def answers(draw: st.DrawFn) -> object:
    """A true answer with hostile names, and with some field of it anything at all."""
    said: Any = {
        **ANSWER,
        "answers": [
            {**GOOD, "name": draw(NAMES), "out": draw(st.text(max_size=20))} for _ in range(draw(st.integers(0, 6)))
        ],
    }
    for _ in range(draw(st.integers(0, 3))):
        where = said
        if said["answers"] and isinstance(said["answers"], list) and draw(st.booleans()):
            where = draw(st.sampled_from(said["answers"]))
        if not isinstance(where, dict) or not where:
            continue
        key = draw(st.sampled_from(sorted(where)))
        if draw(st.integers(0, 4)) == 0:
            del where[key]
            if where is said:
                return said
        else:
            where[key] = draw(ANYTHING)
    return said if draw(st.integers(0, 9)) else draw(ANYTHING)


def answered_by(name: str, said: object) -> NodeAnswer:
    """What becomes of an answer on its way through the one boundary."""
    node = NodeAnswer(name)
    try:
        record_answer(node, cast(Collected, decode_answer("collect", {}, json.dumps(said).encode())))
    except UnexpectedAnswer as error:
        record_failure(node, Unreachable("tool-output-unknown", f"{name}: {error}", "look at it"))
    return node


def archived(
    *entries: ArchiveFile, scrubber: Scrubber | None = None, **said: object
) -> tuple[dict[str, bytes], list[NodeAnswer]]:
    """The members of an archive with these answers, by node."""
    nodes = [answered_by(name, answer) for name, answer in said.items()]
    found: list[ArchiveFile | Absent] = [*entries]
    for node in nodes:
        found += [*node.entries, *node.absent]
    files = archive_files(scrub_entries(found, nodes, scrubber or Scrubber()), "x", 1e9)
    with tarfile.open(fileobj=io.BytesIO(pack_archive(files, 1e9))) as tar:
        members = tar.getmembers()
        assert all(member.isreg() for member in members)
        return {member.name: tar.extractfile(member).read() for member in members}, nodes  # type: ignore[union-attr]


def assert_harmless(names: list[str]) -> None:
    """Unpacked anywhere, on any system, each is a file of its own below that folder."""
    assert len({name.casefold() for name in names}) == len(names)
    folders = {str(parent).casefold() for name in names for parent in PurePosixPath(name).parents}
    for name in names:
        assert name.isprintable()
        assert not set(name) & set('\\:*?"<>|')
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert str(path) == name
        assert ".." not in path.parts
        assert name.casefold() not in folders
        assert len(name) < 1000


@examples(100)
@given(hostile=answers())
@example(hostile={**ANSWER, "answers": [{**GOOD, "name": "../../README.txt"}]})
@example(hostile={**ANSWER, "answers": [GOOD, {**GOOD, "name": "System/Uname", "out": "other"}]})
@example(hostile={**ANSWER, "answers": [{**GOOD, "code": 10**400, "seconds": 10**400}]})
@example(hostile={**ANSWER, "seconds": float("nan")})
@example(hostile={**ANSWER, "users": [["me"]]})
def test_whatever_a_node_answers_its_files_are_its_own(hostile: object) -> None:
    files, nodes = archived(node_a=ANSWER, node_b=hostile)
    assert_harmless(list(files))
    ours = {"README.txt", "manifest.json", "nodes/node_a/system/uname.txt"}
    assert ours <= set(files)
    assert all(name.startswith("nodes/node_b/") for name in set(files) - ours)
    assert b"made by `runbook collect`" in files["README.txt"]
    assert files["nodes/node_a/system/uname.txt"] == b"$ uname -a\nLinux\n"
    listed = json.loads(files["manifest.json"])["files"]
    node_b = nodes[1]
    parts = hostile["answers"] if isinstance(hostile, dict) and node_b.asked else []
    told = [one for one in listed if one.get("node") == "node_b"]
    assert len(told) == len(parts), "each part is there, or said to be missing"
    if node_b.failure is not None:
        assert node_b.failure.cause == "tool-output-unknown"
        assert b"node_b: not asked: tool-output-unknown" in files["README.txt"]
    elif not node_b.whole:
        assert b"are left out" in files["README.txt"]


@examples(100)
@given(paths=st.lists(NAMES, max_size=12))
def test_names_from_anywhere_pass_one_place(paths: list[str]) -> None:
    """Of a run's logs as well, whose names may be another's."""
    entries = [ArchiveFile(f"run/logs/{path}", f"{number}\n") for number, path in enumerate(paths)]
    files, _ = archived(*entries)
    assert_harmless(list(files))
    listed = json.loads(files["manifest.json"])["files"]
    assert len(listed) == 1 + len(paths)


@examples(100)
@given(
    paths=st.lists(
        st.lists(st.sampled_from(["a", "A", "b", "a-2", "b.txt"]), min_size=1, max_size=3).map("/".join), max_size=12
    )
)
def test_no_file_is_written_over_another(paths: list[str]) -> None:
    taken = UsedPaths()
    assert_harmless([taken.take(path) for path in paths])


@pytest.mark.parametrize(
    "failure",
    [KeyError("answer"), ValueError("x\n\x1b[2J" * 1000), ProgramNotStarted({"text": "\n  node-a: fine" * 99})],
)
def test_a_node_whose_answer_raises_is_told_and_the_others_go_on(failure: Exception) -> None:
    """Whatever stands between us and the node found."""
    node = NodeAnswer("node_b")
    record_failure(node, failure)
    assert node.failure is not None
    assert node.failure.cause == "tool-output-unknown"
    assert node.failure.says.isprintable()
    assert len(node.failure.says) < 600
    assert node.failure.remedy


def test_names_of_ours_are_all_allowed() -> None:
    for name in (
        "nodes/gn-01.lab_x/network/ethtool-enp3s0f0.100@if2",
        "run/logs/attempt-01/rank-00000.node-a.l0.out",
        "scripts/A/launch.ps1",
    ):
        assert path_refusal(name) is None


def test_a_node_that_sends_too_much_is_cut_and_that_is_said() -> None:
    big = {**GOOD, "out": "line\n" * 200_000}
    many = [{**big, "name": f"system/n{number}"} for number in range(30)]
    files, _ = archived(node_a=ANSWER, node_b={**ANSWER, "answers": many})
    assert (
        sum(len(data) for name, data in files.items() if name.startswith("nodes/node_b/")) <= MAX_NODE_CHARACTERS + 4096
    )
    listed = [one for one in json.loads(files["manifest.json"])["files"] if one.get("node") == "node_b"]
    assert len(listed) == 30
    assert all(one["truncated"] and one["bytes_left_out"] > 400_000 for one in listed if one["path"])
    assert any("given more than 4 MiB" in one["missing"] for one in listed if not one["path"])
    more = [{**GOOD, "name": f"system/n{number}"} for number in range(5000)]
    files, nodes = archived(node_a={**ANSWER, "answers": more})
    assert len(files) < 500
    assert not nodes[0].whole


# The same through the program, with a node whose own Python says what it likes.

HOSTILE = """\
import json, sys
code = sys.argv[sys.argv.index("-c") + 1]
loads = json.loads
def hostile(text, *more, **options):
    found = loads(text, *more, **options)
    if isinstance(found, dict) and isinstance(found.get("collect"), str):
        found["collect"] = "import json\\ndef look(arguments): return json.load(open(%r))" % FILE
    return found
json.loads = hostile
sys.argv = ["-c", *sys.argv[sys.argv.index("-c") + 2 :]]
exec(code)
"""


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], tuple[int, dict[str, bytes], str]]:
    """collect(answer of node-b): exit code, members, stdout. Both nodes are this machine; node-b's Python lies."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    program = tmp_path / "hostile.py"
    program.write_text(f"FILE = {str(tmp_path / 'answer.json')!r}\n{HOSTILE}")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E -s -u {program} "$@"\n')
    python.chmod(0o755)
    Path("inventory.yml").write_text(
        f"name: two\nrendezvous: {{master: node-a}}\ndefaults: {{connection: local, address: 127.0.0.1}}\n"
        f"nodes:\n  node-a: {{python: {sys.base_prefix}/bin/python3}}\n  node-b: {{python: {python}}}\n"
    )

    def collect(answer: object) -> tuple[int, dict[str, bytes], str]:
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        Path("a.tar.gz").unlink(missing_ok=True)
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        code = main(["collect", "--out", "a.tar.gz", "-o", "json"])
        with tarfile.open("a.tar.gz") as tar:
            return code, {member.name: tar.extractfile(member).read() for member in tar}, out.getvalue()  # type: ignore[union-attr]

    return collect


def test_a_hostile_node_beside_an_honest_one(two_nodes: Callable[[object], tuple[int, dict[str, bytes], str]]) -> None:
    hostile = [{**GOOD, "name": name} for name in ("../../README.txt", "/tmp/x", "../node-a/system/uname", "a\nb")]
    code, files, out = two_nodes({**ANSWER, "answers": [GOOD, *hostile]})
    assert_harmless(list(files))
    assert code == 3
    assert b"Linux" in files["nodes/node-a/system/uname.txt"]
    assert files["nodes/node-b/system/uname.txt"] == b"$ uname -a\nLinux\n"
    assert [name for name in files if name.startswith("nodes/node-b/")] == ["nodes/node-b/system/uname.txt"]
    assert b"4 were not what is sent for them" in files["README.txt"]
    assert len(json.loads(out)["nodes"][1]["unfit"]) == 4
    code, files, out = two_nodes({"answers": "none"})
    assert code == 3
    told = json.loads(out)["nodes"][1]
    assert (told["asked"], told["cause"]) == (False, "tool-output-unknown")
    assert "`$.answers`" in told["says"]
    assert "nodes/node-a/system/uname.txt" in files


# The controller's own side: a run's folder.

SAID = {
    "version": 1,
    "run_id": "x",
    "playbook": "p.yml",
    "inventory": "i.yml",
    "nodes": ["node-a"],
    "stages": [],
    "run_dir": "",
}
RESULT = {**SAID, "verdict": "fail", "exit_code": 1, "stopped_at": "ping", "seconds": 1.0, "causes": ["a"]}
STARTED = {"event": "run-started", "time": 1.7e9, **RESULT, "version": "0.1.0"}


def run_folder(path: Path, result: str, events: str) -> Path:
    (path / "logs").mkdir(parents=True, exist_ok=True)
    (path / "result.json").write_text(result, errors="surrogatepass")
    (path / "events.jsonl").write_text(events, errors="surrogatepass")
    return path


@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(sorted(STARTED)),
    value=ANYTHING | st.just("x" * 100_000) | st.just("\0") | st.just("/" * 5000),
    cut=st.integers(0, 400),
    extra=st.sampled_from(["", "\n[" * 5000, "\n" + "[" * 100_000, '\n{"a":' * 3000, "\n\x85\u2028{}", "\n1e999", "\n" + "9" * 6000]),
)  # fmt: skip
def test_mutated_files_of_a_run_are_read_all_the_same(
    tmp_path: Path, key: str, value: object, cut: int, extra: str
) -> None:
    result, events = json.dumps({**RESULT, key: value}), json.dumps({**STARTED, key: value})
    for one, other in ((result, events), (result[:cut], events[:cut]), (result + extra, events + extra)):
        folder = run_folder(tmp_path / "run", one, other)
        run = read_collected_run(folder)
        assert run is not None
        assert run.started is None or run.started > 0
        found = scrub_entries([*run_entries(run), ArchiveFile("playbook.yml", one, "yaml")], [], Scrubber(["s3cr3t"]))
        assert_harmless(list(archive_files(found, "x", 1e9)))
        assert {one.path for one in found.entries} | {one.what for one in found.absent} >= {"run/result.json"}


def test_no_symlink_leads_out_of_a_run(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "id_ed25519").write_text("OUTSIDE\n")
    for name in ("result.json", "events.jsonl", "crash.txt", "logs", "logs/deep/x.log", "logs/deep"):
        folder = run_folder(tmp_path / f"run-{name.replace('/', '-')}", json.dumps(RESULT), json.dumps(STARTED))
        (folder / "logs" / "deep").mkdir()
        place = folder / name
        if place.is_dir():
            (folder / "logs" / "deep").rmdir()
            if name == "logs":
                place.rmdir()
        else:
            place.unlink(missing_ok=True)
        place.symlink_to(outside if "." not in name else outside / "id_ed25519")
        run = read_collected_run(folder)
        assert run is not None
        found = [one for one in run_entries(run) if isinstance(one, ArchiveFile)]
        assert not any("OUTSIDE" in one.text for one in found), name


def test_pipes_and_sockets_in_a_run_keep_nobody_waiting(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", json.dumps(RESULT), json.dumps(STARTED))
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "events.jsonl")
    os.mkfifo(folder / "crash.txt")
    os.mkfifo(folder / "logs" / "a.log")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(folder / "logs" / "b.log"))
        run = read_collected_run(folder)
        assert run is not None
        assert [one.path for one in run_entries(run) if isinstance(one, ArchiveFile)] == ["run/result.json"]


def test_a_run_that_names_a_file_that_is_no_inventory_does_not_take_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--run-dir` may be what somebody sent."""
    (tmp_path / "private").write_text("PRIVATE: 1\n")
    said = json.dumps({**RESULT, "inventory": str(tmp_path / "private"), "playbook": str(tmp_path / "private")})
    folder = run_folder(tmp_path / "run", said, "")
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "--run-dir", str(folder), "--out", "a.tar.gz"]) == 3
    with tarfile.open("a.tar.gz") as tar:
        assert not any(b"PRIVATE" in tar.extractfile(member).read() for member in tar)  # type: ignore[union-attr]


# Logins that are words.

SOURCE = resources.files("runbook.node").joinpath("collect.py").read_text()
OURS = sorted(set(re.findall(r'^    (?:command)?\("([a-z]+/[\w.-]+)"', SOURCE, re.MULTILINE)))
WORDS = sorted(
    {word for name in OURS for word in re.findall(r"[a-z]{2,}", name)}
    | {"gpu", "data", "node", "nodes", "test", "admin", "torch", "run", "logs", "result", "rank", "scripts", "controller", "train", "job", "user", "kernel", "verdict", "gpu7", "rank0", "worker3"}
)  # fmt: skip
AS_A_WORD = "the {0} of {0}-1: {0} 12, no {0}; {0}.txt nodes/node-a/{0}/driver.txt rmem_{0} {0}=1 [{0}] {0}_2\n"
AS_A_LOGIN = (
    "/home/{0}/x\n", "C:\\Users\\{0}\\x\n", "cd ~{0}/y\n", "user={0} x\n", '{{"user": "{0}"}}\n', "{0}@node-a:~$ ls\n", "uid=1000({0}) gid=7(x),1000({0})\n",
    "-rw-r--r-- 1 {0} staff 12 Jan 1 00:00 x\n", "drwxr-xr-x 12 root {0} 4096 Jan 1 00:00 x\n", "USER       PID %CPU\n{0}  1234  0.0\n",
    "  PID USER      PR\n 12 {0} 20\n", "77 {0} S [/dev/nvidia0] python\n", "{0}:x:1000:1000::/home/{0}:/bin/sh\n", "docker:x:999:a,{0},b\n",
    "Accepted publickey for {0} from 10.0.0.1\n", "session opened for user {0}(uid=1000)\n", "sudo: {0} : TTY=pts/0\n", "/srv/people/{0}/x\n",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_login_that_is_a_word_goes_where_it_is_a_login_and_nowhere_else(word: str) -> None:
    scrubber = Scrubber()
    scrubber.people.add(word, home=f"/srv/people/{word}")
    plain = AS_A_WORD.format(word)
    files, _ = archived(
        ArchiveFile("run/logs/a.log", plain + "".join(AS_A_LOGIN).format(word)),
        scrubber=scrubber,
        node_a={**ANSWER, "answers": [{**GOOD, "name": f"{word}/{word}", "out": plain}]},
    )
    assert files[f"nodes/node_a/{word}/{word}.txt"] == f"$ uname -a\n{plain}".encode()
    text = files["run/logs/a.log"].decode()
    if word in SYSTEM_ACCOUNTS:
        assert text == plain + "".join(AS_A_LOGIN).format(word)
    else:
        assert text == plain + "".join(AS_A_LOGIN).format("user1")
    listed = json.loads(files["manifest.json"])["files"]
    assert {one["path"] for one in listed} == set(files) - {"manifest.json"}


@examples(60)
@given(names=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True))
def test_names_of_members_are_those_that_we_made(names: list[str]) -> None:
    scrubber = Scrubber()
    for name in names:
        scrubber.people.add(name, home=f"/home/{name}")
    tools = [{**GOOD, "name": name} for name in OURS]
    honest, _ = archived(ArchiveFile("run/logs/x.log", "x\n"), node_a={**ANSWER, "answers": tools})
    files, _ = archived(ArchiveFile("run/logs/x.log", "x\n"), scrubber=scrubber, node_a={**ANSWER, "answers": tools})
    assert list(files) == list(honest)


def test_any_other_login_goes_wherever_it_stands() -> None:
    scrubber = Scrubber()
    scrubber.people.add("qzoe7", "Zoe Quux", home="/home/qzoe7")
    assert scrubber.text("qzoe7 started it, run_of_qzoe7, Zoe Quux") == "user1 started it, run_of_user1, user1"


def of_many_users(count: int) -> str:
    """What is kept of an answer that names so many, all beginning alike."""
    many = [[f"u-{number}", f"/home/u-{number}", f"Us Er{number}"] for number in range(count)]
    node = answered_by(
        "node-a", {**ANSWER, "users": many, "answers": [{**GOOD, "out": "u u-1 u-x us er data=u\n" * count}]}
    )
    scrubber = Scrubber()
    for login, home, full in node.people:
        scrubber.people.add(login, full, home=home)
    return scrub_entries([*node.entries], [node], scrubber).entries[0].text


def test_a_node_has_as_many_users_as_an_answer_may_name() -> None:
    assert "u user2 u-x us er" in of_many_users(20_000)


@pytest.mark.cost
def test_users_cost_no_more_than_in_proportion() -> None:
    spent = []
    for count in (10_000, 20_000):
        begin = time.process_time()
        of_many_users(count)
        spent.append(time.process_time() - begin)
    assert spent[1] < 6 * spent[0]
