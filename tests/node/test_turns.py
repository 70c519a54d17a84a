"""A clock that stands still while we sleep, and conversations that take turns on it: run in a Python of their own, as
on a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import runbook.node

HEAD = """
import os, socket, time
from runbook.node.turns import READ, WRITE, LOOK_S, Turns, pause

def waits(sock, seconds, turns, found):
    begun = turns.clock
    ready = yield (sock,), READ, seconds
    found.append((bool(ready), turns.clock - begun))
"""


def on_a_node(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-s", "-c", HEAD + code],
        cwd=Path(runbook.node.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_silence_while_the_process_sleeps_is_not_counted() -> None:
    """Who answers while we sleep is heard, whatever time has passed by the wall clock."""
    said = on_a_node("""
turns, found = Turns(), []
here, there = socket.socketpair()
turns.start(waits(here, 0.3, turns, found))
turns.turn()
there.send(b"x")
time.sleep(1.0)  # no CPU for us
while not found:
    turns.turn()
print(found[0][0], found[0][1] < 0.3)
told = turns.report()
print(told["latest_s"] >= 0.8, told["late_s"] >= 0.8, turns.report()["latest_s"] < 0.5)
""")
    assert said.split() == ["True"] * 5


def test_silence_while_it_is_awake_is_counted() -> None:
    said = on_a_node("""
turns, found = Turns(), []
here, there = socket.socketpair()
begun = time.monotonic()
turns.start(waits(here, 0.3, turns, found))
while not found:
    turns.turn()
print(found[0][0], found[0][1] >= 0.3, time.monotonic() - begun >= 0.3)
""")
    assert said.split() == ["False", "True", "True"]


def test_one_that_is_cancelled_goes_on_no_more_and_cleans_up() -> None:
    said = on_a_node("""
def tidy(said):
    try:
        while True:
            yield from pause(0.01)
    finally:
        said.append("closed")

turns, said, over = Turns(), [], []
task = turns.start(tidy(said), over.append)
turns.turn()
turns.cancel(task)
for _ in range(5):
    turns.turn()
print(said, over)
""")
    assert said.strip() == "['closed'] []"


def test_many_conversations_end_in_the_order_of_their_time() -> None:
    said = on_a_node("""
def sleeper(seconds):
    yield from pause(seconds)
    return seconds

turns, over = Turns(), []
for seconds in (0.3, 0.1, 0.2, 0.0):
    turns.start(sleeper(seconds), over.append)
while len(over) < 4:
    turns.turn()
print(over)
""")
    assert said.strip() == "[0.0, 0.1, 0.2, 0.3]"
