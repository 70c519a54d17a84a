"""In which state an agent is, from beats and time alone; and who may connect in whose place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

pytest.importorskip("starlette")

import runbook
from runbook.agent.agent import FIRST_REDIAL_INTERVAL_S, MAX_REDIAL_INTERVAL_S, redial_delay
from runbook.agent.protocol import (
    AGENT_LOST_TIMEOUT_S,
    AGENT_SUSPECT_TIMEOUT_S,
    ELSEWHERE_CLOSE_CODE,
    MAX_REPORTED_RANKS,
    PROTOCOL_VERSION,
    REPLACED_CLOSE_CODE,
    REVOKED_CLOSE_CODE,
    TOO_OLD_CLOSE_CODE,
    AgentHello,
    Denied,
    Enrolment,
    FromServer,
    Heartbeat,
    JobProcess,
    ProtocolError,
    message_json,
    parse_agent_message,
    parse_server_message,
)
from runbook.serve.agent_channel import Channel
from runbook.serve.agent_fleet import ControlSocket, EnrolledNode, Fleet, NoAgent, NotEnrolled
from runbook.serve.agent_states import AwakeClock, agent_state_name, is_supported_protocol
from runbook.serve.change_stream import Changed
from runbook.serve.settings import ServeSettings
from runbook.serve.store import Store


class World:
    """A fleet with a clock of ours."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.store = Store(data / "serve.db")
        self.time = 1000.0
        self.fleet = self.begun()

    def begun(self) -> Fleet:
        """As the server does when it starts."""
        return Fleet(self.store, ServeSettings(self.data), Changed(), lambda: self.time)

    def enrolled(self, name: str, **options: Any) -> EnrolledNode:
        secret = Enrolment.of(self.fleet.make_enrolment_string("ann", **options)).secret
        _, token = self.fleet.enrol_host(secret, name)
        return self.node(token)

    def node(self, token: str) -> EnrolledNode:
        found = self.fleet.by_token(token)
        assert found is not None
        return found

    def pass_s(self, seconds: float) -> None:
        """Time goes by, and the server runs in it."""
        for _ in range(round(seconds)):
            self.time += 1.0
            self.fleet.nodes()

    def state(self, name: str) -> str:
        found = self.fleet.node(name)
        assert found is not None
        return found.state


def link() -> ControlSocket:
    async def send(message: FromServer) -> None:
        raise AssertionError(f"nobody is to be sent {message}")

    async def close(denied: Denied | None) -> None:
        raise AssertionError(f"nobody is to be told {denied}")

    return ControlSocket("", "", send, close)


def hello(incarnation: str = "a", machine: str = "here", protocol: int = PROTOCOL_VERSION) -> AgentHello:
    return AgentHello(protocol, "0.1.0", incarnation * 32, "host", machine)


def greet(world: World, node: EnrolledNode, word: AgentHello) -> tuple[ControlSocket, Denied | None]:
    made = link()
    made.incarnation, made.machine = word.incarnation, word.machine
    return made, world.fleet.greet(node, word, "10.0.0.1", made)


class OfTheLoop(dict[str, Channel]):
    """Channels that nobody looks at from another thread: they come and go meanwhile."""

    def __init__(self, **channels: Channel) -> None:
        super().__init__(**channels)
        self.thread = threading.current_thread()

    def values(self) -> Any:
        assert threading.current_thread() is self.thread
        return super().values()


def test_the_streams_of_a_revoked_node_end_and_no_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with world.fleet.running():
            channels = [Channel(str(at), node) for at, node in enumerate(("gn1", "gn2", "gn1"))]
            named = {channel.id: channel for channel in channels}
            monkeypatch.setattr(world.fleet, "_channels", OfTheLoop(**named))
            await asyncio.to_thread(world.fleet.revoke, "gn1")
            for channel in (channels[0], channels[2]):
                await asyncio.wait_for(channel.over.wait(), 60)
            assert not channels[1].over.is_set()

    for name in ("gn1", "gn2"):
        world.enrolled(name)
    asyncio.run(run())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with contextlib.closing(made.store):
        yield made


def test_silence_alone_leads_from_online_over_suspect_to_lost_and_a_beat_back(world: World) -> None:
    node = world.enrolled("gn1")
    here, denied = greet(world, node, hello())
    assert denied is None
    assert world.state("gn1") == "ONLINE"
    world.pass_s(AGENT_SUSPECT_TIMEOUT_S - 1)
    assert world.state("gn1") == "ONLINE"
    world.pass_s(1)
    assert world.state("gn1") == "SUSPECT"
    world.pass_s(AGENT_LOST_TIMEOUT_S - AGENT_SUSPECT_TIMEOUT_S)
    assert world.state("gn1") == "LOST"
    assert world.fleet.status("gn1").cause == "agent-lost"
    job = JobProcess("j", 1, "rank-0.gn1.l0", [0])
    assert world.fleet.note_message(node, here, Heartbeat(1, jobs=[job]))
    assert world.state("gn1") == "ONLINE"
    assert world.fleet.status("gn1").cause is None
    found = world.fleet.node("gn1")
    assert found is not None
    assert [(one.job, one.rank, one.pid, one.state) for one in found.jobs] == [("j", 0, None, "running")]
    assert [state for _, state in world.fleet.history("gn1")][:3] == ["ONLINE", "LOST", "SUSPECT"]


def test_of_a_node_no_more_ranks_are_kept_than_anybody_looks_at(world: World) -> None:
    """A message has room for a hundred thousand."""
    node = world.enrolled("gn1")
    here, _ = greet(world, node, hello())
    jobs = [JobProcess(f"j{number}", 1, "rank-0.gn1.l0", list(range(200))) for number in range(512)]
    assert world.fleet.note_message(node, here, Heartbeat(1, jobs=jobs))
    found = world.fleet.node("gn1")
    assert found is not None
    assert len(found.jobs) == MAX_REPORTED_RANKS
    assert found.jobs[0].job == "j0"


def test_a_server_that_slept_takes_nobody_for_lost(world: World) -> None:
    greet(world, world.enrolled("gn1"), hello())
    world.time += 8 * 3600.0
    assert world.state("gn1") == "ONLINE"


def test_after_a_restart_nothing_is_known_until_an_agent_speaks(world: World) -> None:
    node = world.enrolled("gn1")
    greet(world, node, hello())
    world.fleet = world.begun()
    assert world.state("gn1") == "SUSPECT"
    again = world.fleet.by_token
    world.pass_s(AGENT_LOST_TIMEOUT_S)
    assert world.state("gn1") == "LOST"
    assert again("no token") is None


@pytest.mark.parametrize("step_s", [1.0, -1.0], ids=["goes on", "is set back"])
def test_a_replaced_incarnation_is_refused_also_after_a_restart(
    world: World, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server's clock says meanwhile: who came last is known by the order."""
    began = time.time()
    asked = itertools.count()
    monkeypatch.setattr("runbook.serve.agent_fleet.time.time", lambda: began + next(asked) * step_s)
    secret = Enrolment.of(world.fleet.make_enrolment_string("ann")).secret
    _, token = world.fleet.enrol_host(secret, "gn1")
    assert greet(world, world.node(token), hello("a"))[1] is None
    assert greet(world, world.node(token), hello("b"))[1] is None
    for _ in range(2):
        denied = greet(world, world.node(token), hello("a"))[1]
        assert denied is not None
        assert denied.code == REPLACED_CLOSE_CODE
        assert greet(world, world.node(token), hello("b"))[1] is None
        world.fleet = world.begun()


def test_a_drained_node_that_enrols_again_stays_drained(world: World) -> None:
    world.enrolled("gn1")
    world.fleet.drain("gn1", on=True)
    _, token = world.fleet.enrol_host(Enrolment.of(world.fleet.make_enrolment_string("ann", name="gn1")).secret, "gn1")
    assert world.node(token).draining
    world.fleet = world.begun()
    assert world.fleet._node_named("gn1").draining


def test_a_beat_over_a_link_that_was_replaced_counts_for_nothing(world: World) -> None:
    node = world.enrolled("gn1")
    old, _ = greet(world, node, hello("a"))
    greet(world, node, hello("b"))
    assert not world.fleet.note_message(node, old, Heartbeat(1))


def test_a_copy_on_another_machine_is_refused_while_the_first_is_heard(world: World) -> None:
    node = world.enrolled("gn1")
    greet(world, node, hello("a", "here"))
    denied = greet(world, node, hello("b", "elsewhere"))[1]
    assert denied is not None
    assert denied.code == ELSEWHERE_CLOSE_CODE
    world.pass_s(AGENT_LOST_TIMEOUT_S)
    assert greet(world, node, hello("b", "elsewhere"))[1] is None


def test_an_agent_that_is_too_old_is_told_what_to_install(world: World) -> None:
    node = world.enrolled("gn1")
    denied = greet(world, node, hello(protocol=PROTOCOL_VERSION + 1))[1]
    assert denied is not None
    assert denied.code == TOO_OLD_CLOSE_CODE
    assert runbook.__version__ in denied.fix
    assert world.state("gn1") == "TOO_OLD"
    assert greet(world, node, hello())[1] is None
    assert world.state("gn1") == "ONLINE"
    assert [
        is_supported_protocol(PROTOCOL_VERSION - 2),
        is_supported_protocol(PROTOCOL_VERSION - 1),
        is_supported_protocol(PROTOCOL_VERSION),
    ] == [False, True, True]


def test_people_drain_and_revoke_and_both_outlive_the_server(world: World) -> None:
    node = world.enrolled("gn1")
    greet(world, node, hello())
    world.fleet.drain("gn1", True)
    assert world.state("gn1") == "DRAINING"
    assert world.fleet.status("gn1").cause is None
    world.fleet.drain("gn1", False)
    assert world.state("gn1") == "ONLINE"
    node.control = None
    world.fleet.revoke("gn1")
    world.fleet = world.begun()
    assert world.state("gn1") == "REVOKED"
    denied = greet(world, world.fleet._nodes["gn1"], hello("c"))[1]
    assert denied is not None
    assert denied.code == REVOKED_CLOSE_CODE
    with pytest.raises(NoAgent):
        world.fleet.drain("nobody", True)


def test_a_string_enrols_one_node_once(world: World) -> None:
    secret = Enrolment.of(world.fleet.make_enrolment_string("ann")).secret
    for name in ("../x", "", "a b", "n" * 201):
        with pytest.raises(NotEnrolled):
            world.fleet.enrol_host(secret, name)
    world.fleet.enrol_host(secret, "gn1")
    with pytest.raises(NotEnrolled, match="used already"):
        world.fleet.enrol_host(secret, "gn2")
    other = Enrolment.of(world.fleet.make_enrolment_string("ann")).secret
    with pytest.raises(NotEnrolled, match="enrolled already"):
        world.fleet.enrol_host(other, "gn1")
    named = Enrolment.of(world.fleet.make_enrolment_string("ann", "gn1")).secret
    with pytest.raises(NotEnrolled, match="is for gn1"):
        world.fleet.enrol_host(named, "gn2")
    before = world.fleet._nodes["gn1"]
    world.fleet.enrol_host(named, "gn1")
    assert world.fleet._nodes["gn1"].token != before.token
    with world.store.write() as db:
        db.execute("UPDATE enrolments SET expires_at = 0")
    with pytest.raises(NotEnrolled, match="older than an hour"):
        world.fleet.enrol_host(other, "gn3")


def test_secrets_are_not_in_the_database(world: World) -> None:
    told = Enrolment.of(world.fleet.make_enrolment_string("ann"))
    _, token = world.fleet.enrol_host(told.secret, "gn1")
    second = Enrolment.of(world.fleet.make_enrolment_string("ann"))
    dump = "\n".join(world.store._writer.iterdump())
    assert token not in dump
    assert second.secret not in dump
    assert "gn1" in dump


@given(st.floats(0, 1e6), st.booleans(), st.booleans(), st.booleans())
def test_a_state_is_one_of_six_and_silence_never_makes_it_better(
    silent: float, revoked: bool, too_old: bool, draining: bool
) -> None:
    now = agent_state_name(silent, revoked=revoked, too_old=too_old, draining=draining)
    later = agent_state_name(silent + AGENT_LOST_TIMEOUT_S, revoked=revoked, too_old=too_old, draining=draining)
    assert now in ("ONLINE", "SUSPECT", "LOST", "DRAINING", "REVOKED", "TOO_OLD")
    assert later == ("REVOKED" if revoked else "LOST")
    assert (now == "REVOKED") == revoked


@given(st.lists(st.floats(0, 1e5), max_size=50))
def test_the_clock_of_silence_runs_no_faster_than_time_and_not_while_the_server_sleeps(pauses: list[float]) -> None:
    clock, now = AwakeClock(0.0), 0.0
    for pause in pauses:
        before, now = clock.seconds, now + pause
        assert before <= clock.tick(now) <= before + min(pause, 2.0) + 1e-6


@examples(50)
@given(st.integers(0, 1000), st.floats(0, 1))
def test_back_off_is_jittered_in_full_and_bounded(failures: int, chance: float) -> None:
    pause = redial_delay(failures, lambda low, high: low + chance * (high - low))
    assert 0.0 <= pause <= MAX_REDIAL_INTERVAL_S
    assert redial_delay(0, lambda _, high: high) == FIRST_REDIAL_INTERVAL_S
    assert redial_delay(9, lambda _, high: high) == MAX_REDIAL_INTERVAL_S


@examples(200)
@given(st.one_of(st.text(), st.binary(), st.none()))
def test_what_neither_says_is_refused_and_nothing_crashes(text: str | bytes | None) -> None:
    for read in (parse_agent_message, parse_server_message):
        with pytest.raises(ProtocolError):
            read(text)
    if isinstance(text, str):
        with pytest.raises(ProtocolError):
            Enrolment.of(text)


@given(st.text(), st.sampled_from(["http", "https"]), st.binary(min_size=32, max_size=32))
def test_an_enrolment_string_survives_being_wrapped_by_a_terminal(secret: str, scheme: str, digest: bytes) -> None:
    secret = secret.encode("ascii", "ignore").decode()
    told = Enrolment(f"{scheme}://10.0.0.1:8400", digest.hex() if scheme == "https" else None, secret)
    text = str(told)
    assert Enrolment.of(f"  {text[:40]}\n{text[40:]} ") == told
    for wrong in (text[:-8], text + "AAAA", text.replace("agent", "agnet"), ""):
        with pytest.raises(ProtocolError):
            Enrolment.of(wrong)


def test_messages_survive_the_wire() -> None:
    beat = Heartbeat(7, True, [0.5], 4, [], [JobProcess("j", 1, "n", [0, 1], 12, "ended", -9, "10", 3.0)])
    assert parse_agent_message(message_json(beat)) == beat
    with pytest.raises(ProtocolError):
        parse_agent_message(message_json(beat) + " " * (1 << 20))


def test_a_change_of_state_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.enrolled("node-a")
    rows = [("node-a", 7.0, "ONLINE"), ("node-a", 8.0, "SUSPECT")]
    monkeypatch.setattr(world.fleet, "_transitions", rows)

    def locked() -> None:
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as busy:
        busy.setattr(world.store, "write", locked)
        with pytest.raises(sqlite3.OperationalError):
            world.fleet._flush()
    assert {(at, state) for at, state in world.fleet.history("node-a")} >= {(7.0, "ONLINE"), (8.0, "SUSPECT")}
