"""A second supervisor, carried by the first: here both are on this machine, and `env` is what leads into the
container."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.processes import wait_until
from ports import free_port

from runbook.model.errors import Unreachable
from runbook.model.inventory import Container, Node
from runbook.transport.container import PROGRAMS_ON_HOST
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import Message
from runbook.transport.session import Session

from .local_sessions import RUN_ID


def node(workdir: Path, *entry: str) -> Node:
    return Node("node-a", "127.0.0.1", connection="local", python=sys.executable, workdir=str(workdir), inside=entry)


def entered(site: Site, one: Node) -> Session:
    site.open([one])
    assert site.failures == {}
    return site.sessions[one.name]


def outside_of(session: Session) -> Session:
    assert session.outside is not None
    return session.outside


def folders(workdir: Path) -> list[Path]:
    return [*workdir.iterdir(), *Path("/tmp", RUN_ID).glob("*")]


def test_programs_run_inside_and_those_that_look_at_the_host_outside(site: Site, tmp_path: Path) -> None:
    session = entered(site, node(tmp_path, "env", "MARK=inside"))
    assert session.shell("echo $MARK", timeout_s=20).stdout == "inside\n"
    assert session.folder == f"{tmp_path}/{RUN_ID}/node-a"
    outside = outside_of(session)
    assert outside.folder == f"/tmp/{RUN_ID}/node-a+host"
    assert session.program("firewall_rules", {"peers": []}, timeout_s=20).wait(25).message is not None
    assert Path(outside.folder, "firewall_rules.py").exists()
    assert not Path(session.folder, "firewall_rules.py").exists()
    said = session.call("host_facts", {"address": "127.0.0.1"}, timeout_s=20)
    assert (said["own"], said["outside"]) == (True, True)
    session.goodbye()
    assert folders(tmp_path) == []


def test_the_host_binds_a_port_after_the_container_has_let_it_go(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, called, order = entered(site, node(tmp_path, "env")), Session._called, list[str]()

    def noted(self: Session, name: str, arguments: Message) -> Callable[[float], Message]:
        where = "container" if self is session else "host"
        order.append(f"{where} is asked")
        wait = called(self, name, arguments)

        def answer(timeout_s: float) -> Message:
            said = wait(timeout_s)
            order.append(f"{where} has answered")
            return said

        return answer

    monkeypatch.setattr(Session, "_called", noted)
    said = session.call("port", {"ports": [free_port()], "address": None, "speaks": "127.0.0.1"}, timeout_s=30)
    assert [seen["free"] for seen in said["ports"].values()] == [True]
    assert order == ["container is asked", "container has answered", "host is asked", "host has answered"]
    session.goodbye()


def test_bytes_pass_unchanged_both_ways(site: Site, tmp_path: Path) -> None:
    session = entered(site, node(tmp_path, "env"))
    data = os.urandom(1 << 20)
    session.push("data", data)
    assert session.read_file("data", timeout_s=20) == data


@pytest.mark.parametrize(
    ("entry", "cause"),
    [(("/nowhere/docker", "exec"), "container-runtime-missing"), (("/bin/false",), "container-unreachable")],
)
def test_what_does_not_lead_in_is_told_and_the_host_is_let_go(
    site: Site, tmp_path: Path, entry: tuple[str, ...], cause: str
) -> None:
    site.open([node(tmp_path, *entry)])
    assert site.failures["node-a"].cause == cause
    assert folders(tmp_path) == []


def test_a_way_in_that_ends_loses_the_node_and_lets_the_host_go(site: Site, tmp_path: Path) -> None:
    session = entered(site, node(tmp_path, "env"))
    waiting = session.start(["sleep", "1000"])
    assert waiting.started.wait(20)
    os.kill(int(session.hello["pid"]), signal.SIGKILL)
    with pytest.raises(Unreachable) as lost:
        waiting.wait(20)
    assert lost.value.cause == "container-unreachable"
    with contextlib.suppress(ProcessLookupError):
        os.kill(waiting.pid or 0, signal.SIGKILL)
    wait_until("the folder is removed", lambda: not Path("/tmp", RUN_ID).exists())


def test_when_the_host_ends_the_supervisor_inside_cleans_up_first(site: Site, tmp_path: Path) -> None:
    """Its program minds TERM: whoever was signalled first would have cut the line before the word was said."""
    session = entered(site, node(tmp_path, "env"))
    note = tmp_path.parent / f"{tmp_path.name}.note"
    waiting = session.start(["/bin/sh", "-c", f"trap 'echo told >{note}; exit' TERM; sleep 1000 & wait"])
    assert waiting.started.wait(20)
    time.sleep(0.2)  # until the trap is set
    os.kill(int(outside_of(session).hello["pid"]), signal.SIGTERM)
    wait_until("the folders are removed", lambda: not folders(tmp_path))
    assert note.read_text() == "told\n"


def test_the_host_as_a_node_has_nothing_of_the_container() -> None:
    one = Node(
        "node-a", "10.0.0.1", container=Container("docker", "train"), python="/c/python", activate=". x", workdir="/w"
    )
    assert one.entry == ("docker", "exec", "--interactive", "train")
    assert (one.outside.entry, one.outside.python, one.outside.activate, one.outside.workdir) == (
        (),
        "python3",
        None,
        "/tmp",
    )
    here = Node("node-a", "10.0.0.1", connection="local", container=Container("enroot", "train"))
    assert (here.interpreter, here.outside.interpreter) == ("python3", sys.executable)


def test_the_host_tells_whose_processes_are_on_the_gpus_and_what_the_kernel_said() -> None:
    job = {
        "gpu": {"code": 0, "out": "two"},
        "apps": {"code": 0, "out": ""},
        "processes": {},
        "dmesg": None,
        "journal": None,
    }
    host = {
        "gpu": {"code": 0, "out": "eight"},
        "apps": {"code": 0, "out": "42"},
        "processes": {"42": {}},
        "dmesg": ["Xid"],
    }
    merged = PROGRAMS_ON_HOST["gpus"].merged(job, host)
    assert (merged["gpu"]["out"], merged["apps"]["out"], merged["dmesg"]) == ("two", "42", ["Xid"])
    without_driver = PROGRAMS_ON_HOST["gpus"].merged(job, {"gpu": {"missing": True}, "processes": {}, "dmesg": ["Xid"]})
    assert (without_driver["apps"], without_driver["dmesg"]) == (job["apps"], ["Xid"])


def test_a_port_that_the_host_holds_has_its_holder_and_others_stay_the_jobs() -> None:
    taken = {"free": False, "errno": "EADDRINUSE", "holder": {"pid": None}}
    job: dict[str, Any] = {
        "address": None,
        "ports": {"80": {"free": True}, "81": taken, "82": taken},
        "unprivileged": 0,
    }
    host = {
        "address": None,
        "ports": {
            "80": {"free": False, "errno": "EACCES", "holder": {"pid": None}},
            "81": {**taken, "holder": {"pid": 7}},
            "82": taken,
        },
        "unprivileged": 1024,
    }
    merged = PROGRAMS_ON_HOST["port"].merged(job, host)
    assert merged == {**job, "ports": {**job["ports"], "81": {**taken, "holder": {"pid": 7}, "on_host": True}}}
