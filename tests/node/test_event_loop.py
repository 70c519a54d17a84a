"""A clock that stands still while we sleep, and conversations that take turns on it: run in a Python of their own, as
on a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import runbook.node

HEAD = """
import os, socket, time
from runbook.node.event_loop import READ, WRITE, LOOK_S, EventLoop, wait_in_loop

def waits(sock, seconds, loop, found):
    begun = loop.clock
    ready = yield (sock,), READ, seconds
    found.append((bool(ready), loop.clock - begun))
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
loop, found = EventLoop(), []
here, there = socket.socketpair()
loop.start(waits(here, 0.3, loop, found))
loop.turn()
there.send(b"x")
time.sleep(1.0)  # no CPU for us
while not found:
    loop.turn()
print(found[0][0], found[0][1] < 0.3)
told = loop.report()
print(told["latest_s"] >= 0.8, told["late_s"] >= 0.8, loop.report()["latest_s"] < 0.5)
""")
    assert said.split() == ["True"] * 5


def test_silence_while_it_is_awake_is_counted() -> None:
    said = on_a_node("""
loop, found = EventLoop(), []
here, there = socket.socketpair()
begun = time.monotonic()
loop.start(waits(here, 0.3, loop, found))
while not found:
    loop.turn()
print(found[0][0], found[0][1] >= 0.3, time.monotonic() - begun >= 0.3)
""")
    assert said.split() == ["False", "True", "True"]


def test_one_that_is_cancelled_goes_on_no_more_and_cleans_up() -> None:
    said = on_a_node("""
def tidy(said):
    try:
        while True:
            yield from wait_in_loop(0.01)
    finally:
        said.append("closed")

loop, said, over = EventLoop(), [], []
task = loop.start(tidy(said), over.append)
loop.turn()
loop.cancel(task)
for _ in range(5):
    loop.turn()
print(said, over)
""")
    assert said.strip() == "['closed'] []"


def test_many_conversations_end_in_the_order_of_their_time() -> None:
    said = on_a_node("""
def sleeper(seconds):
    yield from wait_in_loop(seconds)
    return seconds

loop, over = EventLoop(), []
for seconds in (0.3, 0.1, 0.2, 0.0):
    loop.start(sleeper(seconds), over.append)
while len(over) < 4:
    loop.turn()
print(over)
""")
    assert said.strip() == "[0.0, 0.1, 0.2, 0.3]"


def test_one_that_waits_for_a_moment_that_the_clock_misses_by_a_hair_holds_nobody_up() -> None:
    """Sums of 0.05 s end in front of what is meant: it goes on once a turn, and time passes between turns."""
    said = on_a_node("""
def until(seconds, loop):
    begun = loop.clock
    for times in range(100_000):
        left = seconds - (loop.clock - begun)
        if left <= 0:
            return times
        yield (), READ, min(left, 1e-18)

loop, over = EventLoop(), []
loop.start(until(0.1, loop), over.append)
turns = 0
while not over:
    time.sleep(LOOK_S)  # as on a busy machine, so that the clock goes in whole steps
    loop.turn()
    turns += 1
print(over[0] <= turns, turns < 10)
""")
    assert said.split() == ["True", "True"]
