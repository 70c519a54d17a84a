"""A node that says what ours says, and not when, how often or about what it was asked: it is judged, and judges nobody else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest
from profiles import one_in

from .hostile_run import attack
from .recorded_node import Json, RecordedNode, Recording, recording, recordings
from .test_hostile_node import innocent_are_judged, silence_is_soon_known

__all__ = ["silence_is_soon_known"]

Said = tuple[Json, bytes]
Disorder = Callable[["Disordered", Said], Iterator[Said]]
NOBODY = 1 << 40
EVENTS = ("hello", "beat", "started", "output", "exit", "failed", "done", "bye")


class Disordered(RecordedNode):
    """Does this to what it says from the frame of that number on, or to that frame alone."""

    def __init__(self, said: Mapping[str, list[Json]], disorder: Disorder, first: int, *, on: bool) -> None:
        self._disorder, self._first, self._on = disorder, first, on
        self._count = 0
        self.before: list[Said] = []
        self.held: list[Said] = []
        super().__init__(said)

    def say(self, frame: Json, payload: bytes = b"") -> None:
        self._count += 1
        now: Said = frame, payload
        hit = not isinstance(frame, bytes) and (self._count >= self._first if self._on else self._count == self._first)
        for one in list(self._disorder(self, now)) if hit else [now]:
            super().say(*one)
        if not hit:
            while self.held:
                super().say(*self.held.pop())
        self.before.append(now)


def _twice(_: Disordered, now: Said) -> Iterator[Said]:
    yield from (now, now)


def _later(node: Disordered, now: Said) -> Iterator[Said]:
    node.held.append(now)
    yield from ()


def _late(_: Disordered, now: Said) -> Iterator[Said]:
    time.sleep(0.3)
    yield now


def _again(node: Disordered, now: Said) -> Iterator[Said]:
    """All that was said before, once more."""
    yield from (*node.before[-50:], now)


def _about_another(node: Disordered, now: Said) -> Iterator[Said]:
    """The answer to an earlier question."""
    answers = [frame["answer"] for frame, _ in node.before if isinstance(frame, dict) and "answer" in frame]
    yield ({**now[0], "answer": answers[-1]} if answers and "answer" in now[0] else now[0]), now[1]


def _in_pieces(node: Disordered, now: Said) -> Iterator[Said]:
    for byte in b"".join(_bytes(now)):
        node.put(bytes([byte]))
    yield from ()


def _bytes(said: Said) -> Iterator[bytes]:
    import json

    yield said[0] if isinstance(said[0], bytes) else json.dumps(said[0]).encode() + b"\n"
    yield said[1]


def _with(**fields: Json) -> Disorder:
    def disorder(_: Disordered, now: Said) -> Iterator[Said]:
        yield {**now[0], **fields}, now[1]

    return disorder


def _before(**frame: Json) -> Disorder:
    """Another frame about the same order goes before it."""

    def disorder(_: Disordered, now: Said) -> Iterator[Said]:
        yield {"id": now[0].get("id"), **frame}, b""
        yield now

    return disorder


DISORDERS: dict[str, Disorder] = {
    "twice": _twice,
    "after the next": _later,
    "late": _late,
    "all of it again": _again,
    "about another question": _about_another,
    "byte by byte": _in_pieces,
    "about nobody": _with(id=NOBODY),
    "about the first order": _with(id=1),
    "about no order": _with(id=None),
    "a length that swallows what follows": _with(bytes=100),
    "no length": _with(bytes=0),
    **{f"as {event}": _with(event=event) for event in EVENTS},
    "ended before": _before(event="exit", code=0, timed_out=False),
    "killed before": _before(event="exit", code=-9, timed_out=True),
    "failed before": _before(
        event="failed", error={"type": "OSError", "errno": "EIO", "text": "x\x1b[2J" * 99, "path": "../x"}
    ),
    "done before": _before(event="done"),
    "a beat of another": _before(event="beat", time=-1e12, echo="clock-1"),
    "goodbye before": _before(event="bye", stopped=1 << 61, swept=0, left=[1]),
}


def disordered(name: str, disorder: str, count: int, folder: Path) -> None:
    found = recording(name)
    chance = random.Random(f"{name} {disorder}")
    failures = []
    for number in range(count):
        node, first, on = chance.choice(found.nodes), chance.randint(1, 12), chance.random() < 0.3

        def make(recorded: Recording, one: str, node: str = node, first: int = first, on: bool = on) -> RecordedNode:
            if one != node:
                return RecordedNode(recorded.said[one])
            return Disordered(recorded.said[one], DISORDERS[disorder], first, on=on)

        done = attack(found, make, folder / str(number))
        if wrong := done.complaint() or innocent_are_judged(done, found, node):
            failures.append(f"{name} {disorder} {node} from frame {first}, {on=}: {wrong}\n{done}")
    assert not failures, f"{len(failures)} of {count}\n" + "\n\n".join(failures[:5])


COMMANDS = [name for name in recordings() if recording(name).command[0] != "attach"]
"""Who attaches waits for as long as the job goes on, and here it may never be heard to end."""

CASES = [(name, disorder) for at, name in enumerate(COMMANDS) for disorder in list(DISORDERS)[at % 6 :: 6]]


@pytest.mark.parametrize(("name", "disorder"), one_in(10, CASES, thorough=2))
def test_frames_in_disorder(name: str, disorder: str, tmp_path: Path) -> None:
    disordered(name, disorder, 1, tmp_path)


@pytest.mark.scale
@pytest.mark.parametrize(("name", "disorder"), [case for case in product(COMMANDS, DISORDERS) if case not in CASES])
def test_every_disorder_in_every_command(name: str, disorder: str, tmp_path: Path) -> None:
    disordered(name, disorder, 1, tmp_path)


@pytest.mark.parametrize("name", one_in(5, recordings()))
def test_a_node_that_says_what_is_true_of_another(name: str, tmp_path: Path) -> None:
    found = recording(name)
    first, last = min(found.nodes), max(found.nodes)
    done = attack(found, lambda recorded, one: RecordedNode(recorded.said[first if one == last else one]), tmp_path)
    assert done.complaint() is None, str(done)
    assert innocent_are_judged(done, found, last) is None, str(done)
