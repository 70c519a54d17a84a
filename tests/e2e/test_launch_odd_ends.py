"""Real programs that end or hang in ways which hide it: the rank is named, and what it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab import Lab
from lab.cli import runbook_cli
from profiles import one_in

from .test_launch import nothing_left

pytestmark = [pytest.mark.lab, pytest.mark.torch]

PROGRAM = """
import ctypes, os, signal, sys, time
rank = int(os.environ["RANK"])
{early}
import torch, torch.distributed as dist

def odd():
    {how}

def main():
    dist.init_process_group("gloo")
    total = torch.ones(10)
    for step in range(400):
        if rank == {odd} and step == 20:
            odd()
        dist.all_reduce(total)
        total /= 2
        if rank == 0:
            print(f"step {{step}} done", flush=True)
        time.sleep(0.05)

main()
"""


@dataclass(frozen=True)
class Odd:
    """`words` stand in what is said of node-b, where the last rank is; `others` are on node-a."""

    cause: str
    words: tuple[str, ...]
    how: str = "pass"
    early: str = ""
    command: str = "[train.py]"
    others: int = 1


KINDS = {
    "aborts": Odd("rank-crashed", ("rank 1 on node-b crashed (signal 6, SIGABRT)", "in odd ("), "os.abort()"),
    "blocks all signals": Odd(
        "rank-behind",
        ("rank 2 on node-b does not tell where it stands", "after step 19"),
        "ctypes.CDLL(None).sleep(10000)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        others=2,
    ),
    "a pipe hides its exit code": Odd(
        "program-error",
        ("rank 1 on node-b ended with code 0", "ValueError: no such label"),
        "raise ValueError('no such label')",
        command="[bash, -c, 'if [ \"$RANK\" = 1 ]; then {python} train.py 2>&1 | tee log; else exec {python} train.py; fi']",
    ),
    "waits for more ranks than there are": Odd(
        "world-size-mismatch", ("all 2 ranks of the job are connected",), early="os.environ['WORLD_SIZE'] = '3'"
    ),
}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        yield made


def playbook(lab: Lab, command: str) -> Path:
    path = lab.tmp / "train.yml"
    more = "grace: 5s, rendezvous_timeout: 20s, watch: {stall: 8s, on_stall: stop}"
    path.write_text(
        f"name: train\nstages:\n  - name: train\n    launch: {{command: {command}, workdir: ~/work, {more}}}\n"
    )
    return path


@pytest.mark.parametrize("kind", one_in(4, KINDS))
def test_what_hides_its_end_is_named(lab: Lab, kind: str) -> None:
    odd = KINDS[kind]
    lab.work_file("train.py", PROGRAM.format(how=odd.how, early=odd.early, odd=odd.others))
    file = playbook(lab, odd.command.replace("{python}", lab.python))
    inventory = lab.inventory(
        defaults={"processes": 1, "env": {"OMP_NUM_THREADS": "1"}}, nodes={"node-a": {"processes": odd.others}}
    )
    done = runbook_cli(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json", timeout=240)
    assert done.returncode == 1, done
    guilty = {one["node"]: one["findings"] for one in done.json()["stages"][-1]["outcomes"] if one["verdict"] == "fail"}
    (finding,) = guilty["node-b"]
    assert finding["cause"] == odd.cause, finding
    for words in odd.words:
        assert words in finding["says"], finding
    if odd.cause != "world-size-mismatch":
        assert list(guilty) == ["node-b"], done
    nothing_left(lab)
