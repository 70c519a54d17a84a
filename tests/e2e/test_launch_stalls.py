"""Four kinds of stall at step 50 of both examples are named with their place; trainings of uneven pace are left alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from lab.cli import runbook_cli
from lab.jax_site import NoJax, jax_site
from profiles import one_in

from .test_launch import EXAMPLE, nothing_left, playbook
from .test_launch_jax import EXAMPLE as JAX_EXAMPLE

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.thorough]
"""Each takes ten to ninety seconds: every other one is in `make test-scale`."""

STALL_S = 10
EXAMPLES = {"torch": EXAMPLE, "jax": JAX_EXAMPLE}
LOOPS = {"torch": "    for step in range(begin, options.steps):", "jax": "    for step in range(options.steps):"}
MEDDLED = """
def meddle(rank, step):
    import random, signal, subprocess, threading
    {what}


def main() -> None:"""

Make = Callable[[str], Lab]


@pytest.fixture
def make() -> Iterator[Make]:
    """A lab of two hosts with what an example needs."""
    with ExitStack() as stack:

        def lab(kind: str) -> Lab:
            try:
                sites = [jax_site()] if kind == "jax" else []
            except NoJax as error:
                pytest.skip(f"no JAX here: {error}")
            return stack.enter_context(Lab(2, sites=sites))

        yield lab


def meddled(lab: Lab, kind: str, what: str) -> None:
    """The example, of which every rank does this before each step."""
    text, loop = EXAMPLES[kind].read_text().replace("\ndef main() -> None:", MEDDLED.format(what=what), 1), LOOPS[kind]
    assert text.count(loop) == 1
    text = text.replace(loop, f"{loop}\n        meddle(int(os.environ['RANK']), step)")
    lab.work_file("train.py", text)


def launched(lab: Lab, file: Path, ranks: int, timeout: float = 200.0) -> dict[str, Any]:
    inventory = lab.inventory(defaults={"processes": ranks})
    done = runbook_cli(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json", timeout=timeout)
    told: dict[str, Any] = done.json()
    return told


STALLS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "in a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "spinning": "while True: pass",
}
ALONE = {
    "torch": "dist.barrier()",
    "jax": "from jax.experimental import multihost_utils; multihost_utils.sync_global_devices('alone')",
}
CAUSES = {"stopped": "rank-stopped", "in a lock": "rank-behind", "spinning": "rank-behind"}


@pytest.mark.parametrize(
    ("stall", "kind", "rank"),
    one_in(
        2,
        (
            (stall, kind, rank)
            for stall, ranks in zip([*STALLS, "in a collective of its own"], itertools.cycle([(3, 0), (0, 3)]))
            for kind in EXAMPLES
            for rank in ranks
        ),
        thorough=2,
    ),
)
def test_a_stall_at_step_50_is_named_with_its_place(
    make: Make, kind: str, rank: int, stall: str, record_property: Callable[[str, object], None]
) -> None:
    lab = make(kind)
    how = STALLS.get(stall, ALONE[kind])
    meddled(lab, kind, f"if rank == {rank} and step == 50:\n        {how}")
    more = f", watch: {{stall: {STALL_S}s, on_stall: stop}}" + (", launcher: jax" if kind == "jax" else "")
    told = launched(lab, playbook(lab, "--steps, 60", more), 2)
    guilty = {one["node"]: one["findings"] for one in told["stages"][-1]["outcomes"] if one["verdict"] == "fail"}
    node = "node-a" if rank < 2 else "node-b"
    assert list(guilty) == [node], told
    (finding,) = guilty[node]
    assert finding["cause"] == CAUSES.get(stall, "mismatched-collectives"), finding
    assert f"rank {rank} on {node}" in finding["says"]
    assert "after step 49" in finding["says"]
    if stall != "stopped":
        assert "in meddle" in finding["says"]
        assert "train.py:" in finding["says"]
    events = map(json.loads, (lab.tmp / "run" / "events.jsonl").read_text().splitlines())
    named = [one["time"] for one in events if "stall" in one.get("data", {})]
    last_step = (lab.tmp / "run/logs/attempt-01/rank-00000.node-a.l0.out").stat().st_mtime
    record_property("seconds from the last step to the name", round(named[-1] - last_step, 1))
    nothing_left(lab)


PACES = {
    "evaluations": (165, "time.sleep(2.5 if step % 15 == 14 else 0.1)"),
    "slow at first": (180, "time.sleep(max(0.2, 3.0 - step))"),
    "steps that grow": (75, "time.sleep(0.015 * step)"),
    "every rank at its own time": (
        100,
        "time.sleep(min(2.5, random.Random(step * 8 + rank).lognormvariate(-2.0, 1.2)))",
    ),
    "in turns": (130, "time.sleep(0.6 if step % 4 == rank else 0.05)"),
    "a checkpoint of rank 0": (220, "time.sleep(1.0 if rank == 0 and step % 20 == 19 else 0.15)"),
    "a checkpoint that lasts longer than the limit": (
        60,
        "[(open('model.pt', 'ab').write(bytes(200_000)), time.sleep(0.1)) for _ in range(750 * (rank == 0 and step == 30))]",
    ),
    "computing in Python": (
        200,
        "end = time.process_time() + 0.04\n    while time.process_time() < end: pass\n    time.sleep(0.16)",
    ),
    "a child now and then": (100, "subprocess.run(['sleep', '1.5']) if step % 10 == rank else time.sleep(0.15)"),
}
"""Steps of 40 seconds together, and what a rank does before each."""

OF_JAX = ("evaluations", "every rank at its own time")


@pytest.mark.parametrize(
    ("kind", "pace"),
    one_in(2, [*(("torch", pace) for pace in PACES), *(("jax", pace) for pace in reversed(OF_JAX))], thorough=2),
)
def test_a_training_of_uneven_pace_is_left_alone(make: Make, kind: str, pace: str) -> None:
    """It lasts so long that its ranks are looked at once, as those of every watched training are: one may be late."""
    lab = make(kind)
    steps, what = PACES[pace]
    meddled(lab, kind, what)
    more = ", watch: {on_stall: stop, baseline: 30s}" + (", launcher: jax" if kind == "jax" else "")
    told = launched(lab, playbook(lab, f"--steps, {steps}", more), 1, timeout=600.0)
    assert told["verdict"] == "pass", told["stages"][-1]
    assert [text for one in told["stages"][-1]["outcomes"] for text in one["warnings"]] == []
