"""A training that makes no steps any more is noticed, and the rank that holds it up is named with its place."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, gpus
from lab.cli import runbook_cli, runbook_finish, runbook_start
from lab.cpu import limited_cpu
from profiles import one_in

from .test_launch import EXAMPLE, launch, nothing_left, pids, playbook, started

pytestmark = [pytest.mark.lab, pytest.mark.torch]

HOLD = """
def hold(rank, step):
    if step != 5 or rank != {rank}:
        return
    import threading, time
    {how}


def main() -> None:"""
HELD = "for step in range(begin, options.steps):"

FORKED_WHILE_LOCKED = """
    lock = threading.Lock(); lock.acquire()
    data = type('Data', (), {'__len__': lambda self: 4, '__getitem__': lambda self, at: lock.acquire()})()
    next(iter(torch.utils.data.DataLoader(data, num_workers=1)))"""

WAYS = {
    "a lock": (
        "lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "rank-behind",
        "hold",
    ),
    "a queue": ("import queue; queue.Queue().get()", "rank-behind", "hold"),
    "spinning": ("while True: pass", "rank-behind", "hold"),  # it computes, or waits for a CPU
    "another collective": ("dist.barrier()", "mismatched-collectives", "barrier"),
    "a data loader": (
        FORKED_WHILE_LOCKED,
        "rank-behind",
        "which it started, is in <lambda>",
    ),
    "a thread that raised": (
        "import queue; threading.Thread(target=lambda: 1 / 0).start(); queue.Queue().get()",
        "rank-behind",
        "has ended with ZeroDivisionError",
    ),
    "a child": ("import subprocess; subprocess.run(['sleep', '1000'])", "rank-behind", "it sleeps"),
}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        for host in made:
            host.run("mkdir -p ~/work", made.user)
        yield made


def held(lab: Lab, rank: int, how: str) -> None:
    text = EXAMPLE.read_text().replace("\ndef main() -> None:", HOLD.format(rank=rank, how=how), 1)
    assert text.count(HELD) == 1
    text = text.replace(HELD, f"{HELD}\n        hold(rank, step)")
    lab.work_file("train.py", text)


def outcomes(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {one["node"]: one["findings"] for one in told["stages"][-1]["outcomes"] if one["verdict"] == "fail"}


@pytest.mark.parametrize(("way", "rank"), one_in(24, zip(WAYS, itertools.cycle((3, 0)))))
def test_the_rank_that_holds_the_others_up_is_named(lab: Lab, way: str, rank: int) -> None:
    how, cause, words = WAYS[way]
    held(lab, rank, how)
    file = playbook(lab, "--steps, 60", ", watch: {stall: 6s, on_stall: stop}")
    done = launch(lab, file, "-o", "json", node_a=2, node_b=2)
    assert done.returncode == 1, done
    guilty = outcomes(done.json())
    node = "node-a" if rank < 2 else "node-b"
    assert list(guilty) == [node], done
    (finding,) = guilty[node]
    assert finding["cause"] == cause, finding
    assert f"rank {rank} on {node}" in finding["says"]
    assert words in finding["says"]
    assert "after step 4" in finding["says"]
    assert re.search(r"train\.py:\d+", finding["says"])
    nothing_left(lab)


def altered(lab: Lab, old: str, new: str) -> None:
    """The example, with this text in place of another."""
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    lab.work_file("train.py", text.replace(old, new))


AT_EXIT = """
import atexit, ctypes, threading
if os.environ["RANK"] == "3":
    atexit.register(threading.Event().wait)
if os.environ["RANK"] == "{late}":
    ctypes.CDLL(None).__cxa_atexit(ctypes.CDLL(None).pause, None, None)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("late", ["", "0"])
def test_who_hangs_at_its_exit_is_named_when_the_others_have_ended(lab: Lab, late: str) -> None:
    """Also where one of these is still below its Python, in the end of a library."""
    altered(lab, "\ndef main() -> None:", f"\n{AT_EXIT.format(late=late)}\n\ndef main() -> None:")
    done = launch(
        lab, playbook(lab, "--steps, 6", ", watch: {stall: 6s, on_stall: stop}"), "-o", "json", node_a=2, node_b=2
    )
    guilty = outcomes(done.json())
    assert list(guilty) == ["node-b"], done
    (finding,) = guilty["node-b"]
    assert finding["cause"] == "rank-behind"
    assert "rank 3 on node-b has not ended" in finding["says"]
    assert "3 others have ended with code 0" in finding["says"]
    nothing_left(lab)


@pytest.mark.thorough
def test_who_is_late_is_named_when_the_others_give_up_by_themselves(lab: Lab) -> None:
    """Without `watch:`, by the time limit of their process group."""
    held(lab, 3, "time.sleep(1000)")
    text = lab["node-a"].read("~/work/train.py")
    joins = 'dist.init_process_group("nccl" if cuda else "gloo"'
    assert text.count(joins) == 1
    lab.work_file("train.py", text.replace(joins, f"{joins}, timeout=__import__('datetime').timedelta(seconds=6)"))
    done = launch(lab, playbook(lab, "--steps, 60"), "-o", "json", node_a=2, node_b=2)
    guilty = outcomes(done.json())
    assert list(guilty) == ["node-b"], done
    (finding,) = guilty["node-b"]
    assert finding["cause"] == "rank-behind"
    assert re.search(
        r"rank 3 on node-b stood in hold \(\S+train\.py:\d+\), where it sleeps, when rank \d", finding["says"]
    )
    nothing_left(lab)


@pytest.mark.thorough
def test_a_rule_that_appears_in_the_middle_is_named(lab: Lab) -> None:
    lab.work_file("train.py", EXAMPLE.read_text())
    inventory = lab.inventory(defaults={"processes": 1})
    file = playbook(lab, "--steps, 100000, --pause, '0.05'", ", watch: {stall: 6s, on_stall: stop}")
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 5 ")
    rule = f"ip saddr {lab['node-b'].address} drop"
    lab["node-a"].firewall(f"table inet late {{\n chain i {{\n type filter hook input priority 0;\n {rule}\n }}\n}}\n")
    done = runbook_finish(run, timeout=120)
    guilty = outcomes(done.json())
    assert list(guilty) == ["node-a"], done
    assert guilty["node-a"][0]["cause"] == "firewall-drop"
    assert "inet late" in guilty["node-a"][0]["says"], done
    nothing_left(lab)


@pytest.mark.thorough
def test_a_stopped_rank_is_named_reported_and_goes_on(lab: Lab) -> None:
    """`on_stall: report`: nobody is ended, and the training passes once the rank goes on."""
    lab.work_file("train.py", EXAMPLE.read_text())
    inventory = lab.inventory(defaults={"processes": 2})
    file = playbook(lab, "--steps, 60, --pause, '0.2'", ", watch: {stall: 5s}")
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 5 ")
    pid = pids(lab["node-b"], "[t]rain.py")[-1]
    lab["node-b"].run(f"kill -STOP {pid}", "root")
    wait_for_event(lab.tmp / "run" / "events.jsonl", '"stall"')
    lab["node-b"].run(f"kill -CONT {pid}", "root")
    done = runbook_finish(run, timeout=90)
    assert done.returncode == 0, done
    warnings = [text for one in done.json()["stages"][-1]["outcomes"] for text in one["warnings"]]
    assert any("on node-b is stopped" in text for text in warnings), warnings


def wait_for_event(file: Path, words: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not (file.is_file() and any(words in line for line in file.read_text().splitlines())):
        assert time.monotonic() < deadline, f"no {words} in {file}"
        time.sleep(0.2)


@pytest.mark.thorough
def test_a_retry_follows_a_stall_that_is_worth_one(lab: Lab) -> None:
    """The second attempt finds a file, and does not wait. Leaving takes its time too, on a busy machine."""
    held(
        lab,
        3,
        "from pathlib import Path; seen = Path.home() / 'seen'; old = seen.exists(); seen.touch(); old or threading.Event().wait()",
    )
    file = playbook(lab, "--steps, 20", ", retries: 1, watch: {stall: 15s, on_stall: retry}")
    done = launch(lab, file, node_a=2, node_b=2)
    assert done.returncode == 0, done
    assert "at attempt 2" in done.stdout
    nothing_left(lab)


def test_a_program_may_write_its_steps_into_a_file(lab: Lab) -> None:
    text = "import os, time\nfor step in range(40):\n    open(os.environ['RUNBOOK_PROGRESS'], 'w').write(str(step))\n    time.sleep(0.3)\n"
    lab.work_file("train.py", text)
    done = launch(lab, playbook(lab, "x", ", watch: {stall: 6s, on_stall: stop}"), "-o", "jsonl", node_a=1, node_b=1)
    assert done.returncode == 0, done
    paces = [
        event["data"]["pace"] for event in map(json.loads, done.stdout.splitlines()) if "pace" in event.get("data", {})
    ]
    assert paces
    assert paces[-1]["per_s"] == pytest.approx(3.3, rel=0.5)
    assert "counters-rising" not in done.stdout
    assert "not read" not in done.stdout


BARS = """
import sys, time
for n in range(1, 100):
    sys.stderr.write("\\r%3d%%|##  | %d/1000 [00:01<01:15, 11.7it/s]" % (n / 10, n))
    time.sleep(0.15)
"""
HOLDS_BACK = """
import time
for n in range(1, 100):
    print("step", n)
    time.sleep(0.15)
"""


@pytest.mark.parametrize("program", one_in(2, [BARS, HOLDS_BACK]))
def test_steps_are_heard_while_they_are_made(lab: Lab, program: str) -> None:
    """In a bar that ends no line, and in lines that Python would keep for its next 8 KiB."""
    for host in lab:
        host.write("~/work/train.py", program, user=lab.user)
    done = launch(lab, playbook(lab, "x", ", watch: {stall: 6s, on_stall: stop}"), "-o", "jsonl", node_a=1, node_b=1)
    assert done.returncode == 0, done
    events = map(json.loads, done.stdout.splitlines())
    told = [event["data"]["pace"] for event in events if "pace" in event.get("data", {})]
    assert 0 < told[0]["step"] < 100


SENDS = """
import os, socket, time
if os.environ["RANK"] == "0":
    with socket.create_server(("", 29505)) as listener, listener.accept()[0] as peer:
        while peer.recv(1 << 16):
            pass
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], 29505), 60)
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(bytes(20_000_000))
    peer.close()
"""


def test_segments_that_are_sent_again_are_named_with_their_node(lab: Lab) -> None:
    lab.work_file("train.py", SENDS)
    lab["node-b"].lose(8)
    done = launch(lab, playbook(lab, "x", ", watch: {}"), "-o", "json", node_a=1, node_b=1)
    assert done.returncode == 0, done
    warned = {one["node"]: " ".join(one["warnings"]) for one in done.json()["stages"][-1]["outcomes"]}
    words = r"counters-rising: node-b: [\d,]+ TCP segments were sent again in .* of [\d,]+\)"
    assert re.search(words, warned["node-b"]), warned
    assert "counters-rising" not in warned["node-a"]


COMPUTES = """
def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def main() -> None:"""


@pytest.mark.xdist_group("one at a time")
@pytest.mark.slow
@pytest.mark.thorough
def test_a_node_whose_cpu_is_cut_is_named(lab: Lab) -> None:
    text = EXAMPLE.read_text().replace("\ndef main() -> None:", COMPUTES, 1)
    text = text.replace(HELD, f"{HELD}\n        compute(0.03)")
    lab.work_file("train.py", text)
    inventory = lab.inventory(defaults={"processes": 1, "env": {"OMP_NUM_THREADS": "1"}})
    file = playbook(lab, "--steps, 1000000, --pause, '0.03'", ", watch: {baseline: 40s}")
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 5 ", timeout=150)
    events = lab.tmp / "run" / "events.jsonl"
    wait_for_event(events, '"pace"')
    time.sleep(45.0)  # the baseline, as a healthy training has it
    assert "training-slowed" not in events.read_text()
    ranks = [pid for pid, line in lab["node-b"].processes() if "train.py" in line]
    with limited_cpu(ranks, 0.04):
        wait_for_event(events, "training-slowed", timeout=300.0)
        run.send_signal(signal.SIGINT)
        done = runbook_finish(run, timeout=60)
    assert done.returncode == 130, done
    told = [event for event in map(json.loads, events.read_text().splitlines()) if "warning" in event.get("data", {})]
    (slowed,) = [event for event in told if event["data"]["warning"] == "training-slowed"]
    busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
    if slowed["node"] is None and busy:  # where every rank waits for a CPU, none stands out: then nobody is named
        assert "no node stands out" in slowed["text"]
    else:
        assert slowed["node"] == "node-b"
        assert "the others wait for node-b: rank 1 on node-b waits for others" in slowed["text"]
    nothing_left(lab)


@pytest.mark.thorough
def test_a_node_that_gets_no_cpu_is_named_in_a_stall(lab: Lab) -> None:
    text = EXAMPLE.read_text().replace("\ndef main() -> None:", COMPUTES, 1)
    text = text.replace(HELD, f"{HELD}\n        compute(0.3)")
    for host in lab:
        host.write("~/work/train.py", text, user=lab.user)
    inventory = lab.inventory(defaults={"processes": 1, "env": {"OMP_NUM_THREADS": "1"}})
    file = playbook(lab, "--steps, 1000000", ", watch: {stall: 15s, on_stall: stop}")
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 5 ", timeout=150)
    ranks = [pid for pid, line in lab["node-b"].processes() if "train.py" in line]
    with limited_cpu(ranks, 0.01):
        done = runbook_finish(run, timeout=120)
    guilty = outcomes(done.json())
    assert list(guilty) == ["node-b"], done
    (finding,) = guilty["node-b"]
    assert finding["cause"] == "rank-behind"
    assert "rank 1 on node-b" in finding["says"]
    assert re.search(r"it gets \d% of a CPU, and waits for one (?:[89]\d|100)% of the time", finding["says"]), finding
    nothing_left(lab)


SENDS_MUCH = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
data = torch.ones(250_000)
for step in range(100000):
    dist.all_reduce(data)
    data /= dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"step {step} done", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.thorough
def test_a_node_whose_network_is_slow_is_named_by_its_connections_and_its_adapter() -> None:
    """All ranks wait alike in the same call. The look comes early on, in case one was late from the beginning."""
    with Lab(3) as lab:
        lab.work_file("train.py", SENDS_MUCH)
        file = playbook(lab, "x", ", watch: {baseline: 40s}")
        inventory = lab.inventory(defaults={"processes": 1, "env": {"OMP_NUM_THREADS": "1"}})
        run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
        started(lab, "step 5 ", timeout=150)
        lab["node-b"].limit(20)
        events = lab.tmp / "run" / "events.jsonl"
        wait_for_event(events, "training-slowed", timeout=150.0)
        run.send_signal(signal.SIGINT)
        runbook_finish(run, timeout=60)
        told = [each for each in map(json.loads, events.read_text().splitlines()) if "warning" in each.get("data", {})]
        (slowed,) = [each for each in told if each["data"]["warning"] == "training-slowed"]
        assert slowed["node"] == "node-b", slowed
        # Where its acknowledgements wait behind what it sends, what it gets is slow as well.
        assert re.search(r"what node-b sends (and gets )?is on its way for", slowed["text"]), slowed
        assert "limited to 20 Mbit/s by `tc`" in slowed["text"]
        nothing_left(lab)


@pytest.mark.thorough
@pytest.mark.parametrize("use", ["idle", "busy"])
def test_a_rank_whose_gpu_is_idle_is_named_and_one_that_may_wait_for_it_is_not(lab: Lab, use: str) -> None:
    """It spins in a line of its own, as `loss.item()` waits; the others are in a collective."""
    for host, busy in zip(lab, (True, use == "busy"), strict=True):
        gpus.install(host, 1, every={"utilization.gpu": "100" if busy else "0"})
    held(lab, 1, "while True: pass")
    inventory = lab.inventory(defaults={"gpus": 1, "processes": None})
    file = playbook(lab, "--steps, 60", ", watch: {stall: 6s, on_stall: stop}")
    done = runbook_cli(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json", timeout=300)
    guilty = outcomes(done.json())
    if use == "busy":
        assert {one["cause"] for found in guilty.values() for one in found} == {"training-stalled"}, done
    else:
        assert list(guilty) == ["node-b"], done
        assert guilty["node-b"][0]["cause"] == "rank-behind"
        assert "its GPU is idle" in guilty["node-b"][0]["says"]
    nothing_left(lab)
