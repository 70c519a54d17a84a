"""What agent.yml forbids cannot be done over the stream, whatever the server sends."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

pytest.importorskip("websockets")

from runbook.agent.permissions import LOOK_PROGRAMS, NotAllowed, OrderFilter, OwnerRules, read_rules
from runbook.agent.protocol import Open
from runbook.model.errors import FilesWrong, Unreachable
from runbook.node import job_control
from runbook.transport.bootstrap import bootstrap_input
from runbook.transport.remote_program import ProgramNotStarted
from runbook.transport.session import Session
from runbook.transport.stream import ProcessStream


class Gated(ProcessStream):
    """A supervisor of this machine behind the gate, as an agent starts it."""

    def __init__(self, rules: OwnerRules) -> None:
        self.gate = OrderFilter(rules)
        super().__init__(["/bin/sh", "-c", self.gate.command])

    def write(self, data: bytes) -> None:
        try:
            super().write(self.gate.feed(data))
        except NotAllowed as error:
            assert self._process.stdin is not None
            self._process.stdin.close()
            raise OSError(str(error)) from None


def session(workdir: Path, rules: OwnerRules, config: Mapping[str, Any] | None = None) -> Session:
    told = {"run_id": "run", "node": "n", "workdir": str(workdir), "keep": False, "again": False, **(config or {})}
    return Session("n", Gated(rules), told, "/bin/sh", 30.0)


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Session]:
    workdir = tmp_path / "work"
    made = session(workdir, OwnerRules(None, (str(workdir),), "look"))
    yield made
    made.goodbye()
    assert list(workdir.iterdir()) == []


def test_looking_goes_on(gated: Session) -> None:
    assert gated.hello["executable"] == sys.executable
    address = gated.call("port", {"ports": [0], "address": "127.0.0.1", "speaks": "127.0.0.1"}, timeout_s=30)
    assert address["ports"]
    assert abs(gated.clock()[0]) < 5


def test_nothing_is_started_pushed_or_read(gated: Session, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ProgramNotStarted, match="commands: look"):
        gated.shell(f"touch {mark}", timeout_s=10)
    with pytest.raises(ProgramNotStarted, match="commands: look"):
        gated.push("x.sh", b"touch mark")
    with pytest.raises(ProgramNotStarted, match="commands: look"):
        gated.read_file("/etc/passwd")
    for name in ("keeper", "collect", "../x", "rank"):
        with pytest.raises(ProgramNotStarted, match="commands: look"):
            gated.ask({"do": "call", "program": name, "arguments": {}}, b"{}", timeout_s=10)
    assert not mark.exists()


def test_what_the_server_sends_as_a_program_is_not_run(gated: Session, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    theirs = json.dumps({"port": f"open({str(mark)!r}, 'w')\ndef look(a): return {{}}"}).encode()
    arguments: dict[str, Any] = {"ports": [], "address": None, "speaks": "127.0.0.1"}
    reply, _ = gated.ask({"do": "call", "program": "port", "arguments": arguments}, theirs, timeout_s=30)
    assert b"ports" in bytes(reply.answer)
    assert not mark.exists()


@pytest.mark.parametrize(
    "config",
    [{"run_id": ".."}, {"run_id": "/etc"}, {"node": "../../x"}, {"workdir": "/tmp"}, {"workdir": "work/../.."}],
)
def test_a_runs_folder_lies_where_it_may(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        session(tmp_path / "work", OwnerRules(None, (str(tmp_path / "work"),), "look"), config)


ELSEWHERE = (
    "data",
    "data/job/node",
    "data/job/node/attempt-01",
    "work/../data",
    "work/../data/job/node/attempt-01",
    "data/../../..",
)


@pytest.mark.parametrize("do", sorted(job_control.ORDERS))
def test_no_order_about_jobs_writes_removes_or_reads_what_is_no_job(do: str, gated: Session, tmp_path: Path) -> None:
    """The supervisor would obey: it is the login's own. The gate must not let it hear of that."""
    mine = tmp_path / "data" / "job" / "node" / "attempt-01"
    mine.mkdir(parents=True, mode=0o700)
    for folder in (mine, *mine.parents[:3]):
        folder.chmod(0o700)
        (folder / "secret.out").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "work" not in path.parts}
    for name in ELSEWHERE:
        place = f"{tmp_path}/{name}"
        about = {"job": "job", "node": "node", "gpus": []}
        more = {"about": about, "attempt": "../../owned", "hash": ["/etc/passwd"], "whole": True, "most": 1 << 20}
        order = {"do": do, "folder": place, "workdir": place, "node": "node", "job": None, **more}
        with pytest.raises(ProgramNotStarted, match="commands: look"):
            gated.ask({"do": "call", "program": "job_control", "arguments": order}, b"{}", timeout_s=10)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "work" not in path.parts} == before


@pytest.mark.parametrize("do", ["list", "watch", "stop", "kill"])
def test_jobs_where_the_owner_allows_them_are_seen_and_ended(do: str, gated: Session, tmp_path: Path) -> None:
    attempt = tmp_path / "work" / "job" / "node" / "attempt-01"
    attempt.mkdir(parents=True, mode=0o700)
    try:
        order = {"do": do, "workdir": str(tmp_path / "work"), "folder": str(attempt), "node": "node", "most": 4096}
        gated.ask({"do": "call", "program": "job_control", "arguments": order}, b"{}", timeout_s=30)
    finally:
        shutil.rmtree(tmp_path / "work" / "job")


@pytest.mark.parametrize("put", ["a link that leads nowhere", "a link to itself", "a folder", "a pipe"])
def test_rules_that_are_no_file_allow_nothing(put: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yml"
    if put == "a folder":
        file.mkdir()
    elif put == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / ("agent.yml" if "itself" in put else "nowhere"))
    with pytest.raises(FilesWrong):
        read_rules(file)


def opened() -> OrderFilter:
    gate = OrderFilter(OwnerRules())
    assert gate.feed(bootstrap_input("/usr/bin/evil")) == bootstrap_input(sys.executable)
    return gate


@examples(300)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.sampled_from([*LOOK_PROGRAMS, "start", "call", "put", "feed"]),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["do", "id", "argv", "program"]), inner)
        ),
    )
)
def test_whatever_is_sent_only_orders_to_look_get_through(sent: object) -> None:
    gate = opened()
    try:
        passed = gate.feed(json.dumps(sent).encode() + b"\n")
    except NotAllowed:
        return
    frame = json.loads(passed.partition(b"\n")[0])
    assert frame["do"] in ("call", "beat", "bye", "config") or "commands: look" in frame["do"]
    assert frame["do"] != "call" or frame["program"] in LOOK_PROGRAMS


@given(st.lists(st.integers(1, 5000), max_size=20))
def test_it_matters_not_how_the_bytes_are_cut(cuts: list[int]) -> None:
    order = (
        json.dumps({"do": "put", "id": 7, "path": "x", "bytes": 11}).encode() + b"\n" + zlib.compress(b"")[:8] + b"xyz"
    )
    beat = json.dumps({"do": "beat", "echo": "e"}).encode() + b"\n"
    data, gate, passed = bootstrap_input("python 3") + order + beat, OrderFilter(OwnerRules()), b""
    for cut in [*cuts, len(data)]:
        passed += gate.feed(data[:cut])
        data = data[cut:]
    assert passed.startswith(bootstrap_input(sys.executable))
    told = passed.removeprefix(bootstrap_input(sys.executable)).splitlines()
    assert [json.loads(line).get("id") for line in told] == [7, None]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"x" * (2 << 20), b"exit #999999999999\n", b"\x00\n"])
def test_what_is_no_stream_of_ours_ends(data: bytes) -> None:
    with pytest.raises(NotAllowed):
        OrderFilter(OwnerRules()).feed(data)


def test_rules_are_read_and_what_cannot_be_read_allows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "agent.yml"
    assert read_rules(file) == OwnerRules()
    file.write_text("users: [ann]\nworkdirs: [/scratch]\ncommands: look\n")
    rules = read_rules(file)
    assert rules == OwnerRules(frozenset({"ann"}), ("/scratch",), "look")

    def order(person: str, workdir: str) -> Open:
        return Open("0" * 32, "", "", workdir, person)

    assert rules.against(order("ann", "/scratch/ann")) is None
    for person, workdir in (("bob", "/scratch"), ("", "/scratch"), ("ann", "/scratchy"), ("ann", "/scratch/../etc")):
        assert rules.against(order(person, workdir))
    for workdir in ("~nobody-knows/x", "/scratch/\0", "\ud800"):  # nothing that could be below a folder
        assert rules.against(order("ann", workdir))
    assert "RUNBOOK_PERSON" in str(rules.against(order("", "/scratch")))
    for text in ("comands: look\n", "commands: some\n", "users: ann\n", "- a\n", "a: [\n", "users: [1\n"):
        file.write_text(text)
        with pytest.raises(FilesWrong):
            read_rules(file)
