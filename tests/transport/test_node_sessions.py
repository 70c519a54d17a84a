"""All nodes at once: one that hangs, fails or refuses hides no other."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport.bootstrap import NoPython, SilentPython
from runbook.transport.node_sessions import Site
from runbook.transport.pause_detector import Awake, Pause
from runbook.transport.session import Session

from .local_sessions import RUN_ID

NODES = [Node(name, "127.0.0.1", connection="local") for name in ("node-a", "node-b", "node-c")]


def test_each_gives_results_errors_and_what_is_late_by_name(site: Site) -> None:
    release = threading.Event()

    def work(node: Node) -> str:
        if node.name == "node-b":
            raise ValueError("no")
        if node.name == "node-c":
            release.wait(30)
        return node.name.upper()

    try:
        found = site.each(NODES, work, timeout_s=1.5)
    finally:
        release.set()
    assert list(found) == ["node-a", "node-b", "node-c"]
    assert found["node-a"] == "NODE-A"
    assert isinstance(found["node-b"], ValueError)
    assert isinstance(found["node-c"], TimeoutError)


def test_no_more_than_forks_at_once() -> None:
    site = Site(RUN_ID, forks=2)
    running, most, lock = set(), [0], threading.Lock()

    def work(node: Node) -> None:
        with lock:
            running.add(node.name)
            most[0] = max(most[0], len(running))
        threading.Event().wait(0.02)
        with lock:
            running.discard(node.name)

    nodes = [Node(f"n{number}", "127.0.0.1") for number in range(8)]
    assert set(site.each(nodes, work, timeout_s=10).values()) == {None}
    assert most[0] == 2
    site.close()


def test_nothing_to_do_is_nothing_done(site: Site) -> None:
    assert site.each([], lambda node: 1, timeout_s=1) == {}


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_node_that_refuses_does_not_hide_the_others(site: Site, tmp_path: Path) -> None:
    here = Node("node-a", "127.0.0.1", connection="local", workdir=str(tmp_path))
    refusing = Node("node-b", "127.0.0.1", ssh=Ssh(port=closed_port(), user="nobody", connect_timeout_s=10))
    site.open([here, refusing])
    assert list(site.sessions) == ["node-a"]
    assert {name: error.cause for name, error in site.failures.items()} == {"node-b": "ssh-refused"}
    assert {name: isinstance(said, dict) for name, said in site.close().items()} == {"node-a": True}


def test_opening_twice_keeps_the_session(site: Site, tmp_path: Path) -> None:
    here = Node("node-a", "127.0.0.1", connection="local", workdir=str(tmp_path))
    site.open([here])
    first: Session = site.sessions["node-a"]
    site.open([here])
    assert site.sessions["node-a"] is first


def test_a_node_that_takes_for_ever_is_told_of_that_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few forks and many dead nodes, the last ones have not even been tried when the time is up."""
    late = {"node-a": None, "node-b": TimeoutError("late")}
    monkeypatch.setattr(site, "each", lambda nodes, work, **_: {node.name: late[node.name] for node in nodes})
    site.open(NODES[:2])
    assert list(site.failures) == ["node-b"]


def test_goodbye_to_a_node_that_is_lost(site: Site, tmp_path: Path) -> None:
    here = Node("node-a", "127.0.0.1", connection="local", workdir=str(tmp_path))
    site.open([here])
    site.sessions["node-a"].give_up("the cable was pulled")
    (said,) = site.close().values()
    assert isinstance(said, Unreachable)


# Logins of a machine that has no CPU to spare.


def logins(
    site: Site, monkeypatch: pytest.MonkeyPatch, *fail: str, held_up_s: float = 0.0, percent: float = 0.0
) -> list[str]:
    """Open NODES; these fail once for want of time, while this machine was held up. The names in the order of the
    tries."""
    tried: list[str] = []

    def one(node: Node) -> None:
        tried.append(node.name)
        if node.name in fail and tried.count(node.name) == 1:
            raise Unreachable("ssh-timeout", f"{node.name} said nothing", "wait")
        if node.name == "node-c":
            raise Unreachable("ssh-refused", "no", "start it")

    monkeypatch.setattr(site, "_open_one", one)
    monkeypatch.setattr(Awake, "longest", lambda self, since: Pause(held_up_s, 0.0, since + 1))
    monkeypatch.setattr("runbook.transport.node_sessions.cpu_pressure_percent", lambda: percent)
    site.open(NODES)
    return tried


@pytest.mark.parametrize("starved", [{"held_up_s": 4.0}, {"percent": 95.0}])
def test_a_login_that_was_short_of_time_on_a_starved_machine_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, starved: dict[str, float]
) -> None:
    tried = logins(site, monkeypatch, "node-a", "node-b", **starved)
    assert sorted(tried) == ["node-a", "node-a", "node-b", "node-b", "node-c"]
    assert {name: failure.cause for name, failure in site.failures.items()} == {"node-c": "ssh-refused"}


def test_on_a_machine_that_kept_up_a_timeout_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(logins(site, monkeypatch, "node-a", held_up_s=0.1)) == ["node-a", "node-b", "node-c"]
    assert site.failures["node-a"].evidence == ()


@pytest.mark.parametrize(("held_up_s", "proven"), [(4.0, False), (0.0, True)])
def test_a_python_that_says_nothing_is_missing_only_where_this_machine_kept_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, held_up_s: float, proven: bool
) -> None:
    silent = SilentPython("python-missing", "nothing came of it", "look")
    monkeypatch.setattr(site, "_open", lambda nodes, deadline, **_: {node.name: (node, silent) for node in nodes})
    monkeypatch.setattr(Awake, "longest", lambda self, since: Pause(held_up_s, 0.0, since + 1))
    monkeypatch.setattr("runbook.transport.node_sessions.cpu_pressure_percent", lambda: 0.0)
    site.open(NODES[:1])
    assert isinstance(site.failures["node-a"], NoPython) == proven


def test_a_login_that_fails_again_says_that_this_machine_was_starved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        site,
        "_open",
        lambda nodes, deadline, **_: {n.name: (n, Unreachable("ssh-timeout", "nothing", "wait")) for n in nodes},
    )
    monkeypatch.setattr(Awake, "longest", lambda self, since: Pause(4.0, 0.0, since + 1))
    site.open(NODES[:1])
    assert "gave runbook no CPU for 4 s" in site.failures["node-a"].evidence[0]
