"""A real training through a launch stage: it runs, its failures have causes, and nothing is left behind."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Host, Lab
from lab.cli import CliResult, runbook_cli, runbook_finish, runbook_start

pytestmark = [pytest.mark.lab, pytest.mark.torch]
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"

STEPS = """
import os, time
for step in range(5000):
    if os.environ["RANK"] == "0":
        print(f"step {step} loss 1.0", flush=True)
    time.sleep(0.05)
"""
"""What ends a job does not ask whether its ranks have torch; with it every rank takes two seconds of CPU to begin."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        made.work_file("train.py", EXAMPLE.read_text())
        yield made


@pytest.fixture(params=["steps", pytest.param("training", marks=pytest.mark.thorough)])
def endless(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A playbook of a job that goes on until somebody ends it."""
    if request.param == "training":
        return playbook(lab, "--steps, 5000, --pause, '0.05'")
    lab.work_file("train.py", STEPS)
    return playbook(lab, "endless")


def playbook(lab: Lab, words: str = "--steps, 6", more: str = "") -> Path:
    path = lab.tmp / "train.yml"
    launch = f"{{command: [train.py, {words}], workdir: ~/work, grace: 5s{more}}}"
    path.write_text(f"name: train\nstages:\n  - {{name: train, launch: {launch}}}\n")
    return path


def launch(lab: Lab, file: Path, *args: str, **processes: int) -> CliResult:
    inventory = lab.inventory(nodes={name.replace("_", "-"): {"processes": n} for name, n in processes.items()})
    return runbook_cli(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", *args, timeout=300)


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"step \d+ loss ([\d.]+)", text)]


def started(lab: Lab, words: str = "step 1 ", timeout: float = 120.0) -> None:
    """Wait until rank 0 has written these words, whether or not the controller still looks on."""
    workdir = lab["node-a"].path("~/.runbook")
    deadline = time.monotonic() + timeout
    while not any(words in file.read_text() for file in workdir.glob("*/node-a/attempt-01/rank-00000.node-a.l0.out")):
        assert time.monotonic() < deadline, "the training did not begin"
        time.sleep(0.1)


def pids(host: Host, what: str) -> list[str]:
    return str(host.run(f"pgrep -f '{what}' || true", "root").stdout).split()


def nothing_left(lab: Lab, *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while left := [pid for host in lab for what in ("[t]rain.py", "[k]eeper.py") for pid in pids(host, what)]:
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.2)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [(2, 2), (1, 3)])
def test_ddp_has_the_loss_of_one_process(lab: Lab, ranks: tuple[int, int]) -> None:
    alone = lab["node-a"].run(f"cd ~/work && OMP_NUM_THREADS=1 {lab.python} train.py --steps 6", lab.user, timeout=240)
    done = launch(lab, playbook(lab), node_a=ranks[0], node_b=ranks[1])
    assert done.returncode == 0, done
    assert losses(done.stdout) == pytest.approx(losses(str(alone.stdout)), abs=1e-5)
    assert len(losses(done.stdout)) == 6
    assert re.search(r"4 ranks ended with code 0 .* started within \d+ ms", done.stdout)
    nothing_left(lab)


def test_a_killed_rank_ends_all_and_is_named(lab: Lab, endless: Path) -> None:
    inventory = lab.inventory(defaults={"processes": 2})
    run = runbook_start(lab, "run", endless, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab)
    lab["node-b"].run(f"kill -9 {pids(lab['node-b'], '[t]rain.py')[-1]}", "root")
    done = runbook_finish(run, timeout=60)
    assert done.returncode == 1, done
    told = done.json()
    assert told["causes"][0] == "rank-killed"
    guilty = [one for one in told["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    assert [one["node"] for one in guilty] == ["node-b"]
    nothing_left(lab)


def test_an_import_error_is_not_tried_again(lab: Lab) -> None:
    for host in lab:
        text = "import os, time\nif os.environ['RANK'] == '1': import nothing_like_this\ntime.sleep(60)\n"
        host.write("~/work/train.py", text, user=lab.user)
    done = launch(lab, playbook(lab, more=", retries: 3"), node_a=1, node_b=1)
    assert done.returncode == 1, done
    assert "nothing_like_this" in done.stdout
    assert not (lab.tmp / "run/logs/attempt-02").exists()
    nothing_left(lab)


@pytest.mark.thorough
def test_a_stolen_port_is_another_one_at_the_second_attempt(lab: Lab) -> None:
    thief = f"exec {lab.python} -c 'import socket, time; s = socket.create_server((\"\", 29500)); time.sleep(90)'"
    with lab["node-a"].popen(thief, "root") as holder:
        try:
            time.sleep(1.0)
            done = launch(lab, playbook(lab, more=", retries: 1"), node_a=1, node_b=1)
        finally:
            holder.kill()
    assert done.returncode == 0, done
    assert "at attempt 2" in done.stdout


def test_programs_that_differ_are_not_started(lab: Lab) -> None:
    lab["node-b"].write("~/work/train.py", EXAMPLE.read_text() + "\n# mine\n", user=lab.user)
    done = launch(lab, playbook(lab), "-o", "json", node_a=1, node_b=1)
    assert done.json()["causes"][0] == "program-differs", done
    nothing_left(lab)


def test_ctrl_c_ends_the_job_and_nothing_is_left(lab: Lab, endless: Path) -> None:
    inventory = lab.inventory(defaults={"processes": 1})
    run = runbook_start(lab, "run", endless, "-i", inventory, "--run-dir", lab.tmp / "run")
    started(lab)
    run.send_signal(signal.SIGINT)
    assert runbook_finish(run, timeout=60).returncode == 130
    nothing_left(lab)


def test_a_killed_controller_takes_an_attached_job_with_it(lab: Lab, endless: Path) -> None:
    inventory = lab.inventory(defaults={"processes": 1})
    run = runbook_start(lab, "run", endless, "-i", inventory, "--run-dir", lab.tmp / "run")
    started(lab)
    run.kill()
    runbook_finish(run, timeout=30)
    nothing_left(lab, within_s=40)


def test_a_detached_job_outlives_its_controller_and_is_stopped_from_another(lab: Lab, endless: Path) -> None:
    endless.write_text(endless.read_text().replace("grace: 5s", "grace: 5s, detach: true"))
    inventory = lab.inventory(defaults={"processes": 1})
    run = runbook_start(lab, "run", endless, "-i", inventory, "--run-dir", lab.tmp / "run")
    started(lab)
    run.kill()
    runbook_finish(run, timeout=30)
    told = runbook_cli(lab, "ps", "-i", inventory, "-o", "json").json()["jobs"]
    assert [job["state"] for job in told] == ["running"]
    assert "step 0 loss" in runbook_cli(lab, "logs", "-i", inventory).stdout
    assert runbook_cli(lab, "clean", "-i", inventory).returncode == 1, "a job that lives is not removed"
    assert runbook_cli(lab, "stop", "-i", inventory).returncode == 0
    nothing_left(lab)
    assert runbook_cli(lab, "clean", "-i", inventory).returncode == 0
    assert runbook_cli(lab, "ps", "-i", inventory, "-o", "json").json()["jobs"] == []


OOM = """import os, time, torch
with open(os.path.expanduser("~/tries"), "a") as file:
    file.write("x")
print("rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
    )
time.sleep(60)
"""


@pytest.mark.thorough
def test_out_of_memory_is_tried_again_once_and_not_twice(lab: Lab) -> None:
    lab.work_file("train.py", OOM)
    done = launch(lab, playbook(lab, more=", retries: 5"), "-o", "json", node_a=1, node_b=1)
    assert done.returncode == 1, done
    assert done.json()["causes"][0] == "gpu-out-of-memory", done
    assert lab["node-b"].read("~/tries") == "xx"
    nothing_left(lab)
