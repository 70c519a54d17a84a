"""A node in somebody else's hands, in place of any node, in every command: it spoils what is known of itself, and no more."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from profiles import one_in

from runbook.checks.network import mesh
from runbook.checks.ranks import pool
from runbook.files.inventory import load_inventory
from runbook.jobs import attach, stop_attempt
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.node_answers import (
    ANSWER_TYPES,
    FIREWALL_RULES_MESSAGES,
    KEEPER_MESSAGES,
    MESH_MESSAGES,
    Messages,
    checked_message,
)

from .hostile_run import Done, attack, changing
from .recorded_node import Json, Recording, recording, recordings, unchanged

RUNS = tuple(name for name in recordings() if recording(name).runs)
OTHERS = tuple(name for name in recordings() if not recording(name).runs)

SILENCES = (
    (attach, "NODE_SILENCE_TIMEOUT_S"),
    (mesh, "LISTENING_TIMEOUT_S"),
    (pool, "RANK_MESSAGE_TIMEOUT_S"),
    (pool, "MAX_BEAT_SILENCE_S"),
    (stop_attempt, "SLOW_LOGS_TIMEOUT_S"),
)
"""How long a node that says nothing is waited for. One that plays its recording answers at once, or not at all."""


@pytest.fixture(autouse=True)
def silence_is_soon_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in SILENCES:
        monkeypatch.setattr(module, name, getattr(module, name) / 20)


Path_ = tuple[Any, ...]

STRINGS = (
    "",
    "../../../etc/cron.d/x",
    "/root/.ssh/authorized_keys",
    "a\0b",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe",
    "x" * 5000,
    "$(touch owned)`touch owned`;touch owned",
    "999.999.999.999/99",
    "::1%eth0/129",
    "\ud800",
    "9" * 5000,
    "\n\nPASS after 1 s\n",
)
NUMBERS = (-1, 0, 1, 65536, 2**63, -(2**63), 10**400, 1.5, -1e308)
REST: tuple[Json, ...] = (None, True, [], {}, [[]], [{}], {"": {}}, [None])
NOT_JSON = (b"NaN", b"1e999", b"[" * 100_000, b"{" * 1000, b'"\\ud800"', b'"\xff"', b"", b"}", b'{"a":1,"a":2}')


def places(value: Json, at: Path_ = ()) -> Iterator[Path_]:
    """Every place in a JSON value; of long lists the first two and the last."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from places(value[index], (*at, index))
    elif isinstance(value, str) and (inside := within(value)) is not None:
        yield from places(inside, (*at, WITHIN))


WITHIN = "the JSON in this text"


def within(text: str) -> Json:
    """What a tool of the node printed as JSON; None for other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def step_in(value: Json, step: Any) -> Json:
    return json.loads(value) if step == WITHIN else value[step]


def altered(value: Json, at: Path_, change: Callable[[Json], Json]) -> Json:
    """A copy in which `change` was applied at this place; MISSING removes it."""
    if not at:
        return change(value)
    if at[0] == WITHIN:
        made = altered(json.loads(value), at[1:], change)
        return "" if made is MISSING else json.dumps(made)
    copy = dict(value) if isinstance(value, dict) else list(value)
    made = altered(copy[at[0]], at[1:], change)
    if made is MISSING:
        del copy[at[0]]
    else:
        copy[at[0]] = made
    return copy


MISSING = object()


def changes(value: Json) -> list[tuple[str, Callable[[Json], Json]]]:
    """What an attacker may put in the place of a value, by a name for it."""
    kinds: list[Any] = [*STRINGS, *NUMBERS, *REST]
    found: list[tuple[str, Callable[[Json], Json]]] = [
        (f"{type(kind).__name__} {str(kind)[:30]!r}", lambda _, kind=kind: kind)  # type: ignore[misc]
        for kind in kinds
        if kind != value or type(kind) is not type(value)
    ]
    found.append(("missing", lambda _: MISSING))
    if isinstance(value, list):
        found += [("twice", lambda v: v + v), ("backwards", lambda v: v[::-1]), ("many", lambda v: (v or [0]) * 2000)]
    if isinstance(value, dict):
        found.append(("more keys", lambda v: {**v, "../x": 1, "": None, "9" * 30: {}}))
        found.append(("others' values", lambda v: dict(zip(v, list(v.values())[::-1], strict=True))))
    if isinstance(value, str):
        found += [
            ("longer", lambda v: v + "x"),
            ("a control character", lambda v: v + "\x1b[31m"),
            ("other digits", lambda v: v.replace("1", "9")),
        ]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found += [("one more", lambda v: v + 1), ("negative", lambda v: -v), ("much more", lambda v: v * 1_000_003)]
    return found


Attack = tuple[str, str, str, int, Path_, str]  # recording, node, program, which of its answers, place, change


def attacks(names: tuple[str, ...]) -> list[Attack]:
    found: list[Attack] = []
    for name in names:
        said = recording(name).said
        for node in (min(said), max(said)):
            for program, answers in said[node].items():
                for number, answer in enumerate(answers[:2]):
                    for at in places(answer):
                        value = _at(answer, at)
                        found += [(name, node, program, number, at, kind) for kind, _ in changes(value)]
    return found


def _at(value: Json, at: Path_) -> Json:
    for step in at:
        value = step_in(value, step)
    return value


def hostile(plan: Attack) -> Callable[[str, Json], Json]:
    """Alters what this program says, in each of its answers that has such a place."""
    _, _, program, number, at, kind = plan
    counts = {"answers": 0}

    def change(name: str, said: Json) -> Json:
        if name != program:
            return said
        steps = at
        if program in ("rank", "mesh", "firewall_rules", "keeper"):  # whose messages come one by one
            if not at:
                return said
            steps = at[1:]
            if counts["answers"] != at[0]:
                counts["answers"] += 1
                return said
        elif counts["answers"] != number:
            counts["answers"] += 1
            return said
        counts["answers"] += 1
        try:
            wanted = dict(changes(_at(said, steps)))
        except (KeyError, IndexError, TypeError, ValueError):
            return said
        made = altered(said, steps, wanted[kind]) if kind in wanted else said
        return {} if made is MISSING else made

    return change


def run_of(plan: Attack, folder: Path) -> Done:
    name, node = plan[:2]
    return attack(recording(name), changing(node, hostile(plan)), folder)


@pytest.mark.parametrize("name", recordings())
def test_what_was_recorded_ends_as_it_ended(name: str, tmp_path: Path) -> None:
    """The attacks below start from here: otherwise they would prove nothing."""
    found = recording(name)
    done = attack(found, changing("", unchanged), tmp_path)
    assert (done.complaint(), done.code) == (None, found.code), str(done)
    assert not found.runs or tuple(done.document["causes"]) == found.causes, str(done)
    assert innocent_are_judged(done, found, "") is None, str(done)


ASKED_LATE = {"stack_samples"}
"""What nodes are asked only after minutes of a training: no recording is played for so long."""


def test_nodes_of_every_command_were_recorded() -> None:
    """Whatever asks nodes anything has a recording: a new command needs one as well."""
    commands = {recording(name).command[0] for name in recordings()}
    assert commands == {"run", "ps", "logs", "attach", "stop", "clean", "collect", "inventory"}
    asked = {program for name in recordings() for said in recording(name).said.values() for program in said}
    assert set(ANSWER_TYPES) - ASKED_LATE <= asked


def tried(names: tuple[str, ...], count: int, folder: Path) -> None:
    """So many attacks, as many on each recording as on the others."""
    chance = random.Random(20261122)
    plans = [
        plan
        for every in map(attacks, ((name,) for name in names))
        for plan in chance.sample(every, min(-(-count // len(names)), len(every)))
    ]
    failures = []
    for number, plan in enumerate(plans):
        done = run_of(plan, folder / str(number))
        wrong = done.complaint() or innocent_are_judged(done, recording(plan[0]), plan[1])
        if wrong:
            failures.append(f"{plan}: {wrong}\n{done}")
    assert not failures, f"{len(failures)} of {count}\n" + "\n\n".join(failures[:5])


def innocent_are_judged(done: Done, found: Recording, guilty: str) -> str | None:
    """No command may give up on all nodes because of what one of them said."""
    others = [node for node in found.nodes if node != guilty]
    if found.runs:
        for node in others:
            for outcome in done.outcomes(node):
                for finding in outcome["findings"]:
                    if finding["cause"] == "insufficient-evidence":
                        return f"{node} is not judged: {finding['says']}"
    elif found.command[0] == "collect":
        asked = {one["node"]: one["asked"] for one in json.loads(done.stdout)["nodes"]}
        return next((f"{node} is not collected from" for node in others if not asked[node]), None)
    elif found.command[0] == "ps":
        unreached = json.loads(done.stdout)["unreached"]
        return next((f"{node} is not asked for its jobs" for node in others if node in unreached), None)
    elif found.command[0] == "inventory":
        made, _ = load_inventory(done.run_dir / "made.yml", environ={})
        names = {node.name for node in made.nodes}
        return next((f"{node} is not in the inventory" for node in others if node not in names), None)
    return None


def test_the_field_is_named_and_nobody_else_is_told_to_be_alone(tmp_path: Path) -> None:
    def lie(program: str, said: Json) -> Json:
        return (
            altered(said, ("interfaces", "eth0", "prefixes", 0), lambda _: "999.1.1.1/99")
            if program == "ping"
            else said
        )

    done = attack(recording("firewall_iptables_nft"), changing("node-b", lie), tmp_path)
    assert done.code == 3, str(done)
    (finding,) = done.outcomes("node-b")[-1]["findings"]
    assert finding["cause"] == "tool-output-unknown"
    assert "`$.interfaces[...].prefixes[0]`" in finding["says"]
    assert "one node" not in done.outcomes("node-a")[-1]["proof"]


@pytest.mark.parametrize("name", ["a\0b", "a\nb: c", "/x\r", "\x1b[2J", "", "x" * 5000])
def test_an_inventory_that_a_node_spoils_can_be_loaded(name: str, tmp_path: Path) -> None:
    found = recording("inventory_init")
    at = ("pythons", len(found.said["node-b"]["pythons"][0]["pythons"]) - 1, "path")

    def lie(program: str, said: Json) -> Json:
        return altered(said, at, lambda _: name) if program == "pythons" else said

    done = attack(found, changing("node-b", lie), tmp_path)
    assert (done.complaint(), done.code) == (None, 0), str(done)
    made, _ = load_inventory(done.run_dir / "made.yml", environ={})
    assert {node.name: node.python for node in made.nodes}["node-a"] == "/opt/runbook-lab/venv/bin/python"


def test_answers_that_do_not_fit_change_nothing_but_that_node(tmp_path: Path) -> None:
    tried(RUNS, 40, tmp_path)


@pytest.mark.parametrize("name", one_in(2, OTHERS))
def test_other_commands_bear_a_node_that_lies(name: str, tmp_path: Path) -> None:
    tried((name,), 10, tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
def test_many_answers_that_do_not_fit(tmp_path: Path) -> None:
    tried(RUNS, 200, tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
def test_other_commands_bear_a_node_that_lies_in_many_ways(name: str, tmp_path: Path) -> None:
    tried((name,), 30, tmp_path)


@pytest.mark.parametrize(
    ("program", "bytes_"),
    one_in(
        4,
        itertools.product(("hello", "host_facts", "ping", "port", "firewall_rules", "mesh", "rank"), NOT_JSON),
    ),
)
def test_what_is_no_json_at_all(program: str, bytes_: bytes, tmp_path: Path) -> None:
    name = "firewall_iptables_nft"
    done = attack(recording(name), changing("node-b", lambda one, said: bytes_ if one == program else said), tmp_path)
    assert done.complaint() is None, str(done)
    assert done.code in (1, 3), str(done)
    assert json.loads((done.run_dir / "result.json").read_text())["verdict"] in ("fail", "unknown")
    told = [finding for outcome in done.outcomes("node-b") for finding in outcome["findings"]]
    assert told or program == "firewall_rules", "only rules are not needed where a port of another node tells enough"
    assert {finding["cause"] for finding in told} <= {"tool-output-unknown"}, str(done)
    # A rank prints among libraries that are not ours: what it says is log, and its silence is what is known of it.
    assert all((program == "rank") == ("not what our programs say" not in one["says"]) for one in told), str(done)


NO_MESSAGES = (*NOT_JSON[:-1], b"7", b"[]", b'"x"', b'{"event": 3}', b'{"event": "heard-of-by-nobody"}')


@pytest.mark.parametrize(
    "messages", [MESH_MESSAGES, FIREWALL_RULES_MESSAGES, KEEPER_MESSAGES], ids=["mesh", "firewall_rules", "keeper"]
)
@pytest.mark.parametrize("said", NO_MESSAGES)
def test_a_program_that_prints_alone_says_nothing_but_its_messages(said: bytes, messages: Messages) -> None:
    with pytest.raises(UnexpectedAnswer):
        checked_message(messages, said)
    if said != b'{"event": "heard-of-by-nobody"}':
        assert checked_message(messages, said, whole=False) is None, "it was killed while it spoke"
    assert checked_message(Messages(messages.described, among_foreign_output=True), said) is None, (
        "somebody else may print that"
    )
