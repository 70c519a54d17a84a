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
        made.work_file("train.py", EXAMPLE.read_text())
        yield made


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [(1, 1), pytest.param((1, 3), marks=pytest.mark.thorough)])
def test_jax_has_the_loss_of_one_process(lab: Lab, ranks: tuple[int, int]) -> None:
    alone = lab["node-a"].run(f"cd ~/work && {lab.python} train.py --steps 6", lab.user)
    done = launch(lab, playbook(lab, more=JAX), node_a=ranks[0], node_b=ranks[1])
    assert done.returncode == 0, done
    assert f"{sum(ranks)} devices in {sum(ranks)} processes" in done.stdout
    assert losses(done.stdout) == pytest.approx(losses(alone.stdout), abs=1e-5)
    assert len(losses(done.stdout)) == 6
    nothing_left(lab)


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_taken_coordinator_port_is_another_one_at_the_second_attempt(lab: Lab) -> None:
    bind = 'import socket, time; s = socket.create_server(("", 29500)); print("up", flush=True); time.sleep(90)'
    with lab["node-a"].popen([lab.python, "-c", bind], "root") as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            done = launch(lab, playbook(lab, more=f"{JAX}, retries: 1"), node_a=1, node_b=1)
        finally:
            holder.kill()
    assert done.returncode == 0, done
    assert "at attempt 2" in done.stdout
    nothing_left(lab)


@pytest.mark.thorough
def test_a_process_that_never_comes_is_named(lab: Lab) -> None:
    """JAX aborts those who wait, with a line that names nobody."""
    join = "    jax.distributed.initialize("
    late = EXAMPLE.read_text().replace(join, f"    time.sleep(90 if os.environ['RANK'] == '1' else 0)\n{join}")
    lab.work_file("train.py", late)
    done = launch(lab, playbook(lab, "--patience, '1'", JAX), "-o", "json", node_a=1, node_b=1)
    assert done.json()["causes"][0] == "ranks-missing", done
    guilty = [one for one in done.json()["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    assert [one["node"] for one in guilty] == ["node-b"]
    assert "rank 1 on node-b" in guilty[0]["findings"][0]["says"]
    nothing_left(lab)


@pytest.mark.thorough
def test_host_names_that_mean_loopback_are_told_before_anything_starts(lab: Lab) -> None:
    """The interface that the inventory names does not help: JAX's gloo knows its own host name, and nothing else."""
    for host in lab:
        host.set_hosts(f"127.0.1.1 {host.name}\n" + "".join(f"{o.address} {o.name}\n" for o in lab if o is not host))
    done = launch(lab, playbook(lab, more=JAX), "-o", "json", node_a=1, node_b=1)
    assert done.json()["causes"] == ["name-resolves-to-loopback"], done
    outcomes = done.json()["stages"][-1]["outcomes"]
    assert [(one["node"], one["verdict"]) for one in outcomes] == [("node-a", "fail"), ("node-b", "fail")]
    lab["node-a"].run(outcomes[0]["findings"][0]["remedy"], "root")
    # Of two ranks the one with the larger address dials, and node-b's 127.0.1.1 is larger than the lab's 10.x.
    again = launch(lab, playbook(lab, more=JAX), "--run-dir", str(lab.tmp / "again"), node_a=1, node_b=1)
    assert again.returncode == 0, again
    nothing_left(lab)


@pytest.mark.thorough
def test_a_process_that_raises_and_waits_for_the_others_is_ended_after_the_grace(lab: Lab) -> None:
    """Without `os._exit` JAX would wait for five minutes."""
    text = EXAMPLE.read_text().partition('if __name__ == "__main__":')[0] + "main()\n"
    loop = "    for step in range("
    assert text.count(loop) == 1
    text = text.replace(loop, f"    if os.environ['RANK'] == '1':\n        raise RuntimeError('no more data')\n{loop}")
    lab.work_file("train.py", text)
    done = launch(lab, playbook(lab, more=JAX), "-o", "json", node_a=1, node_b=1)
    assert done.returncode == 1, done
    guilty = [one for one in done.json()["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    assert [one["node"] for one in guilty] == ["node-b"]
    assert "no more data" in guilty[0]["findings"][0]["says"]
    nothing_left(lab)
