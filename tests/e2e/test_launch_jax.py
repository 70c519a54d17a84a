"""The `jax` launcher with JAX itself: two hosts, gloo collectives on their CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab, runbook_finish, runbook_start
from lab.jax_site import NoJax, jax_site

from .test_launch import launch, losses, nothing_left, pids, playbook, started

pytestmark = [pytest.mark.lab]
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_jax.py"
JAX = ", launcher: jax"


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        site = jax_site()
    except NoJax as error:
        pytest.skip(f"no JAX here: {error}")
    with Lab(2, sites=[site]) as made:
        for host in made:
            host.run("mkdir -p ~/work", made.user)
            host.write("~/work/train.py", EXAMPLE.read_text(), user=made.user)
        yield made


@pytest.mark.parametrize("ranks", [(1, 1), (1, 3)])
def test_jax_has_the_loss_of_one_process(lab: Lab, ranks: tuple[int, int]) -> None:
    alone = lab["node-a"].run(f"cd ~/work && {lab.python} train.py --steps 6", lab.user)
    done = launch(lab, playbook(lab, more=JAX), node_a=ranks[0], node_b=ranks[1])
    assert done.returncode == 0, done
    assert f"{sum(ranks)} devices in {sum(ranks)} processes" in done.stdout
    assert losses(done.stdout) == pytest.approx(losses(alone.stdout), abs=1e-5)
    assert len(losses(done.stdout)) == 6
    nothing_left(lab)


def test_a_killed_process_is_the_cause_and_not_what_jax_says_of_it_elsewhere(lab: Lab) -> None:
    inventory = lab.inventory()
    file = playbook(lab, "--steps, 2000, --pause, '0.05'", JAX)
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab)
    lab["node-b"].run(f"kill -9 {pids(lab['node-b'], '[t]rain.py')[-1]}", "root")
    done = runbook_finish(run, timeout=60)
    assert done.returncode == 1, done
    assert done.json()["causes"][0] == "rank-killed", done
    guilty = [one for one in done.json()["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    assert [one["node"] for one in guilty] == ["node-b"]
    nothing_left(lab)


def test_a_taken_coordinator_port_is_another_one_at_the_second_attempt(lab: Lab) -> None:
    thief = f"exec {lab.python} -c 'import socket, time; s = socket.create_server((\"\", 29500)); time.sleep(90)'"
    with lab["node-a"].popen(thief, "root") as holder:
        try:
            done = launch(lab, playbook(lab, more=f"{JAX}, retries: 1"), node_a=1, node_b=1)
        finally:
            holder.kill()
    assert done.returncode == 0, done
    assert "port-in-use may be gone" in done.stdout
    assert "at attempt 2" in done.stdout
    nothing_left(lab)
