"""A real cluster of the lab: the inventory of a job, its nodes over its steps, and every way in which that can end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import CliResult, Lab, gpus, runbook_cli, runbook_finish, runbook_start
from lab.fault import filter_rule
from lab.needs import find_library
from lab.processes import wait_until
from lab.slurm import SlurmLab

pytestmark = [pytest.mark.lab, pytest.mark.slurm]

CHECKS = "name: checks\nstages:\n  - check: ping\n  - check: port\n  - check: firewall\n"
FIREWALL = "name: firewall\nstages:\n  - check: firewall\n"
WAIT = "name: wait\nstages:\n  - {name: wait, shell: 'sleep 1234 & sleep 1235', timeout: 60s}\n"
TRAIN = """\
name: train
stages:
  - name: train
    launch:
      launcher: direct
      command: [/bin/sh, -c, 'echo "rank $RANK gpus $CUDA_VISIBLE_DEVICES tasks ${SLURM_NTASKS-none}"; sleep 1235']
"""


@pytest.fixture
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(2) as made:
        yield made


def playbook(lab: Lab, text: str) -> Path:
    file = lab.tmp / "playbook.yml"
    file.write_text(text)
    return file


def run(lab: Lab, text: str, *arguments: str | Path, **options: Any) -> tuple[CliResult, dict[str, Any]]:
    done = runbook_cli(lab, "run", playbook(lab, text), *arguments, "-o", "json", **options)
    return done, done.json() if done.stdout else {}


def told(document: dict[str, Any], verdict: str) -> dict[str, str]:
    """Node -> first cause of the last stage's outcomes with this verdict."""
    outcomes = document["stages"][-1]["outcomes"]
    return {one["node"]: one["findings"][0]["cause"] for one in outcomes if one["verdict"] == verdict}


def started(lab: Lab, words: str) -> None:
    """Wait until a program runs on every host."""
    wait_until("it runs", lambda: all(any(words in command for _, command in host.processes(lab.user)) for host in lab))


def interrupted(lab: SlurmLab, text: str, strike: Callable[[], object]) -> dict[str, Any]:
    """Run this, and strike while it runs on every node. Gives the document; nothing of it lives on any host."""
    process = runbook_start(lab, "run", playbook(lab, text), "-i", lab.inventory(), "-o", "json")
    started(lab, "sleep 1235")
    strike()
    done = runbook_finish(process)
    for host in lab:
        host.wait_empty(user=lab.user)
    assert [command for _, command in lab.login.processes() if command.startswith("srun")] == [], done
    assert done.returncode == 3, done
    found: dict[str, Any] = done.json()
    return found


# From the job to a run


def test_a_job_is_an_inventory_and_its_nodes_are_reached(lab: SlurmLab) -> None:
    named = f"slurm:{lab.job}"
    listed = runbook_cli(lab, "inventory", "list", "-i", named, "-o", "json").json()
    assert [(node["name"], node["address"], node["connection"]) for node in listed["nodes"]] == [
        (host.name, host.address, "slurm") for host in lab
    ]
    made = runbook_cli(lab, "inventory", "init", "slurm", env={"SLURM_JOB_ID": str(lab.job)})
    assert f"slurm: {{job: {lab.job}}}" in made.stdout
    done, document = run(lab, CHECKS, "-i", named)
    assert done.returncode == 0, done
    assert [stage["verdict"] for stage in document["stages"]] == ["pass"] * 4
    assert document["inventory"] == named
    for host in lab:
        host.wait_empty(user=lab.user)
        assert list(host.path("~/.runbook").iterdir()) == []


def test_arguments_that_name_no_job_of_ours(lab: SlurmLab) -> None:
    foreign = lab.login.run(["salloc", "--no-shell", "-N1", "--overcommit", "--oversubscribe"], "root").stderr.split()[
        -1
    ]
    ended = lab.slurm.allocate(nodes=1)
    lab.slurm.user("scancel", str(ended))
    for named, cause in (
        ("slurm", "slurm-no-allocation"),
        ("slurm:4711", "slurm-job-unknown"),
        (f"slurm:{foreign}", "slurm-job-unknown"),
        (f"slurm:{ended}", "slurm-job-ended"),
    ):
        done = runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", named)
        assert (done.returncode, f"error[{cause}]" in done.stderr) == (2, True), done


def test_nodes_that_no_step_reaches_are_told_one_by_one(lab: SlurmLab) -> None:
    """Each by what is wrong with it: not in the job, a job that is over, no srun here."""
    one = lab.slurm.allocate("--nodelist=node-a", nodes=1)
    done, document = run(lab, CHECKS, "-i", lab.inventory(defaults={"slurm": {"job": one}}))
    assert (done.returncode, told(document, "unknown")) == (3, {"node-b": "slurm-node-not-in-job"}), done
    lab.slurm.user("scancel", str(one))
    done, document = run(lab, CHECKS, "-i", lab.inventory(defaults={"slurm": {"job": one}}))
    assert set(told(document, "unknown").values()) == {"slurm-job-ended"}, done
    done, document = run(lab, CHECKS, "-i", lab.inventory(), env={"PATH": "/usr/local/sbin"})
    assert set(told(document, "unknown").values()) == {"slurm-tool-missing"}, done


# What ends it


def test_a_cancelled_job_leaves_nothing_and_accuses_nobody(lab: SlurmLab) -> None:
    document = interrupted(lab, WAIT, lambda: lab.slurm.user("scancel", str(lab.job)))
    assert told(document, "unknown") == dict.fromkeys(lab.names, "slurm-job-ended")


def test_ranks_get_the_jobs_gpus_and_end_with_it() -> None:
    with SlurmLab(2, gpus=2) as lab:
        for host in lab:
            gpus.install(host)
        named = f"slurm:{lab.job}"
        process = runbook_start(lab, "run", playbook(lab, TRAIN), "-i", named, "-o", "json")
        started(lab, "sleep 1235")
        logs = runbook_cli(lab, "logs", "-i", named)
        assert sorted(line.partition("] ")[2] for line in logs.stdout.splitlines()) == [
            f"rank {rank} gpus 0,1 tasks none" for rank in range(4)
        ]
        listed = runbook_cli(lab, "ps", "-i", named, "-o", "json").json()
        assert [job["state"] for job in listed["jobs"]] == ["running"]
        lab.slurm.user("scancel", str(lab.job))
        done = runbook_finish(process)
        assert done.returncode == 3, done
        assert told(done.json(), "unknown") == dict.fromkeys(lab.names, "slurm-job-ended"), done
        for host in lab:
            host.wait_empty(user=lab.user)


@pytest.mark.thorough
def test_ranks_that_take_their_grace_are_not_accused_meanwhile(lab: SlurmLab) -> None:
    slow = TRAIN.replace("sleep 1235'", 'trap "sleep 2; exit 143" TERM; sleep 1235 & wait\'').replace('\\"', '"')
    document = interrupted(lab, slow, lambda: lab.slurm.user("scancel", str(lab.job)))
    assert told(document, "unknown") == dict.fromkeys(lab.names, "slurm-job-ended")


@pytest.mark.thorough
@pytest.mark.parametrize("text", [WAIT, TRAIN])
def test_a_killed_controller_leaves_nothing(lab: SlurmLab, text: str) -> None:
    process = runbook_start(lab, "run", playbook(lab, text), "-i", lab.inventory())
    started(lab, "sleep 1235")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for host in lab:
        host.wait_empty(user=lab.user)


@pytest.mark.thorough
def test_a_time_limit_is_told_as_that(lab: SlurmLab) -> None:
    text = WAIT.replace("60s", "120s")  # slurmctld looks at limits twice a minute
    document = interrupted(lab, text, lambda: lab.slurm.admin("scontrol", "update", f"jobid={lab.job}", "EndTime=now"))
    says = document["stages"][-1]["outcomes"][0]["findings"][0]["says"]
    assert set(told(document, "unknown").values()) == {"slurm-job-ended"}
    assert "time limit" in says


@pytest.mark.thorough
def test_a_requeue_is_told_as_that(lab: SlurmLab) -> None:
    lab.slurm.user("scancel", str(lab.job))
    lab.job = int(lab.slurm.user("sbatch", "-N2", "--requeue", "--wrap", "sleep 600").split()[-1])
    wait_until("it runs", lambda: "RUNNING" in lab.slurm.user("squeue", "-h", "-o", "%T"))
    document = interrupted(lab, WAIT, lambda: lab.slurm.admin("scontrol", "requeue", str(lab.job)))
    finding = document["stages"][-1]["outcomes"][0]["findings"][0]
    assert finding["cause"] == "slurm-job-ended"
    assert "was requeued" in finding["says"]


@pytest.mark.thorough
def test_credentials_that_are_not_believed(lab: SlurmLab) -> None:
    """A node whose clock is an hour ahead takes every credential for expired; and a munged that does not run makes none."""
    node = lab["node-b"]
    lab.slurm.stop(node, "munged")
    lab.slurm.start_munged(node, env={"LD_PRELOAD": find_library("libfaketimeMT.so.1"), "FAKETIME": "+3600"})
    done, document = run(lab, CHECKS, "-i", lab.inventory())
    assert told(document, "unknown") == {"node-b": "slurm-auth-failed"}, done
    assert "Expired credential" in node.read("/var/log/slurmd.log")
    lab.slurm.stop(lab.login, "munged")
    done = runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", f"slurm:{lab.job}")
    assert (done.returncode, "error[slurm-auth-failed]" in done.stderr) == (3, True), done


@pytest.mark.thorough
def test_a_slurmd_and_a_slurmctld_that_do_not_answer(lab: SlurmLab) -> None:
    lab.slurm.stop(lab["node-b"], "slurmd")
    done, document = run(lab, CHECKS, "-i", lab.inventory())
    assert told(document, "unknown") == {"node-b": "slurm-unreachable"}, done
    lab.slurm.stop(lab.login, "slurmctld")
    done = runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", f"slurm:{lab.job}")
    assert (done.returncode, "error[slurm-unreachable]" in done.stderr) == (3, True), done


# Taking nodes out


def test_a_bad_node_is_drained_by_who_may_and_shown_by_who_may_not() -> None:
    with SlurmLab(4) as lab:
        filter_rule(lab["node-c"], f"ip saddr {lab['node-b'].address} tcp dport 29500-29510 drop")
        arguments = ("-i", lab.inventory(), "--drain", "--drain-at-most", "25")
        done, document = run(lab, FIREWALL, *arguments)
        assert told(document, "fail") == {"node-c": "firewall-drop"}, done
        typed = next(line for line in done.stderr.splitlines() if "scontrol update" in line).partition("fix")[2].strip()
        assert set(lab.slurm.states().values()) == {"mixed"}, "an ordinary user may not"
        lab.login.run(typed.removeprefix("sudo "), "root")  # the very command that was printed
        reason = lab.slurm.admin("sinfo", "-h", "-N", "-n", "node-c", "-o", "%E")
        assert reason.startswith("runbook: firewall-drop "), reason
        assert document["run_id"] in reason
        drained = runbook_cli(lab, "inventory", "list", "-i", f"slurm:{lab.job}")
        assert "note: node-c is drained: runbook: firewall-drop" in drained.stderr
        lab.slurm.admin("scontrol", "update", "nodename=node-c", "state=resume")
        lab.slurm.may_administrate()
        done, _ = run(lab, FIREWALL, *arguments)
        assert "drain: node-c is drained: runbook: firewall-drop" in done.stderr, done
        assert sorted(lab.slurm.states().values()) == ["draining", *["mixed"] * 3]
