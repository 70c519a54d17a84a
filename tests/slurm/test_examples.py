"""The scripts in examples/slurm, run by Slurm itself as they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import gpus
from lab.fault import filter_rule
from lab.lab import CHECKOUT
from lab.slurm import SlurmLab

pytestmark = [pytest.mark.lab, pytest.mark.slurm]

EXAMPLES = CHECKOUT / "examples" / "slurm"
PREFLIGHT = "name: preflight\nstages:\n  - check: ping\n  - check: firewall\n"
OF_A_NODE = "name: node\nstages:\n  - {name: more, shell: 'true'}\n"


def until(ready: Callable[[], object], lab: SlurmLab, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, lab.slurm.admin("scontrol", "show", "job") + str(lab.slurm.states())
        time.sleep(0.1)


def submitted(lab: SlurmLab) -> Path:
    """The batch script in a shared folder, submitted from there."""
    lab.install_runbook()
    work = lab.shared / "work"
    work.mkdir(mode=0o1777)
    work.chmod(0o1777)
    (work / "train.sbatch").write_text((EXAMPLES / "train.sbatch").read_text())
    (work / "preflight.yml").write_text(PREFLIGHT)
    (work / "train.sh").write_text("hostname >trained.$SLURM_PROCID\n")
    lab.slurm.user("sbatch", "--chdir=/shared/work", "/shared/work/train.sbatch")
    return work


def trained(work: Path) -> set[str]:
    return {file.read_text().strip() for file in work.glob("trained.*")}


def test_the_batch_script_trains_on_nodes_that_passed() -> None:
    with SlurmLab(2, job=False) as lab:
        work = submitted(lab)
        until(lambda: trained(work) == {"node-a", "node-b"}, lab)
        assert [file.parent.name.partition("-")[0] for file in work.glob("*/result.json")] == ["preflight"]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_batch_script_goes_on_without_the_node_that_was_proven_bad() -> None:
    with SlurmLab(3, job=False) as lab:
        filter_rule(lab["node-b"], f"ip saddr {lab['node-a'].address} tcp dport 20000-32000 drop")
        work = submitted(lab)
        until(lambda: trained(work) == {"node-a", "node-c"}, lab, 300)
        assert len(list(work.glob("preflight-*/result.json"))) == 2


def of_the_node(lab: SlurmLab) -> None:
    """Every node knows itself, as Slurm calls it, and what it is to have; node-b has a GPU that is broken."""
    lab.install_runbook()
    for host in lab:
        wrong = {1: {"ecc.errors.uncorrected.volatile.total": "7"}} if host.name == "node-b" else None
        gpus.install(host, wrong=wrong)
        host.write("/etc/runbook/node.yml", OF_A_NODE)
        host.write(
            "/etc/runbook/here.yml", f"nodes: {{{host.name}: {{address: 127.0.0.1, connection: local, gpus: 2}}}}\n"
        )
        for name in ("prolog.sh", "health.sh"):
            text = (EXAMPLES / name).read_text().replace("${AT_MOST:-10}", "50")
            host.write(f"/etc/runbook/{name}", text, mode=0o755)


@pytest.mark.thorough
def test_the_prolog_drains_the_bad_node_and_the_job_is_requeued_held() -> None:
    with SlurmLab(2, settings={"Prolog": "/etc/runbook/prolog.sh", "PrologFlags": "Alloc"}, job=False) as lab:
        of_the_node(lab)
        lab.slurm.user("sbatch", "-N2", "--chdir=/tmp", "--wrap", "true")
        until(lambda: lab.slurm.states() == {"node-a": "idle", "node-b": "drained"}, lab)
        until(lambda: "held" in lab.slurm.user("squeue", "-h", "-o", "%T %r"), lab)


@pytest.mark.thorough
def test_the_health_check_drains_the_bad_node_with_its_cause() -> None:
    settings = {"HealthCheckProgram": "/etc/runbook/health.sh", "HealthCheckInterval": 3, "HealthCheckNodeState": "ANY"}
    with SlurmLab(2, settings=settings) as lab:
        of_the_node(lab)
        until(lambda: lab.slurm.states()["node-b"] in ("drained", "draining"), lab)
        reason = lab.slurm.admin("sinfo", "-h", "-N", "-n", "node-b", "-o", "%E")
        assert reason.startswith("runbook: gpu-ecc-uncorrectable "), reason
        time.sleep(4)  # and it stays at that
        assert lab.slurm.states()["node-a"] == "mixed"
