"""What Slurm's programs print, as recorded on Slurm 22.05, and what is made of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.cli.inventory_source import inventory_source
from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.yaml_document import parse_document
from runbook.importers.slurm_job import JOB_PORTS, PORTS_PER_JOB, draft_of_job, first_free_port_block, used_local_ports
from runbook.model.errors import FilesWrong, Unreachable
from runbook.transport.slurm import (
    SlurmJob,
    SlurmNode,
    expand_host_list,
    no_step_failure,
    node_fault,
    parse_slurm_job,
    parse_slurm_nodes,
    slurm_stderr_failure,
)

JOB = """\
JobId=12 JobName=x JobState=FAILED NodeList=gn99
   UserId=anna(61203) GroupId=anna(61203) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=0 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=2026-11-22T13:14:36 EligibleTime=2026-11-22T13:14:36
   Partition=all AllocNode:Sid=head:0
   ReqNodeList=(null) ExcNodeList=gn07
   NodeList=gn[01-02],login1
   BatchHost=gn01
   NumNodes=3 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:a100:8
     Nodes=gn[01-02] CPU_IDs=0-31 Mem=0 GRES=gpu:a100:4(IDX:0-1,3,5)
     Nodes=login1 CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   Command=(null)
   WorkDir=/home/anna
"""
NODES = """\
NodeName=node-a Arch=x86_64 CoresPerSocket=1
   NodeAddr=10.77.146.1 NodeHostName=node-a Version=22.05.8
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A

NodeName=node-b Arch=x86_64 CoresPerSocket=1
   NodeAddr=10.77.146.2 NodeHostName=node-b Version=22.05.8
   State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason=bad cable in rail 3 State=IDLE [root@2026-11-22T13:30:22]

NodeName=node-c CoresPerSocket=1
   NodeAddr=node-c NodeHostName=node-c
   State=DOWN* ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason=Not responding [slurm@2026-11-22T13:30:22]
"""
CANCELLED = "slurmstepd-node-a: error: *** STEP 1.1 ON node-a CANCELLED AT 2026-11-22T13:34:37{} ***"


def job() -> SlurmJob:
    return parse_slurm_job(JOB, "12")


def test_a_job_is_read_whatever_its_name_pretends() -> None:
    found = job()
    assert (found.id, found.state, found.restarts, found.limit) == ("12", "RUNNING", 0, "01:00:00")
    assert found.nodes == ("gn01", "gn02", "login1")
    assert found.gpus == {"gn01": (0, 1, 3, 5), "gn02": (0, 1, 3, 5), "login1": ()}


def test_lists_of_hosts_are_taken_apart() -> None:
    assert expand_host_list("(null)") == expand_host_list("") == ()
    assert expand_host_list("a[1-2,4]b,c") == ("a1b", "a2b", "a4b", "c")


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error", JOB.replace("JobState", "Jobs"), JOB.replace("gn[01-02],l", "gn[2-1],l")]
)
def test_a_text_that_is_no_job_is_not_guessed_at(text: str) -> None:
    with pytest.raises(Unreachable, match="tool-output-unknown"):
        parse_slurm_job(text, "12")


def test_an_array_of_jobs_is_not_one_job() -> None:
    with pytest.raises(Unreachable, match="slurm-job-unknown: 12 is 2 jobs"):
        parse_slurm_job(JOB + "\n" + JOB, "12")


@pytest.mark.parametrize("state", ["DOWN*+DRAIN", "DOWN+DRAIN+NOT_RESPONDING", "DOWN*+DRAIN*"])
def test_a_node_that_is_down_and_drained_is_down(state: str) -> None:
    found = parse_slurm_nodes(NODES.replace("State=DOWN*", f"State={state}"))["node-c"]
    assert found.states[:2] == ("DOWN", "DRAIN")
    assert found.silent
    fault = node_fault(found)
    assert fault is not None
    assert fault.says.startswith("node-c is down")


def test_nodes_are_read_with_what_is_held_against_them() -> None:
    found = parse_slurm_nodes(NODES)
    assert [node.address for node in found.values()] == ["10.77.146.1", "10.77.146.2", "node-c"]
    assert found["node-b"].states == ("MIXED", "DRAIN")
    assert node_fault(found["node-a"]) is None
    drained, down = node_fault(found["node-b"]), node_fault(found["node-c"])
    assert drained is not None
    assert drained.cause == "slurm-node-drained"
    assert drained.says.startswith("node-b is drained: bad cable in rail 3")
    assert down is not None
    assert down.says.startswith("node-c is down")
    silent = node_fault(replace(found["node-a"], silent=True))
    assert silent is not None
    assert silent.cause == "slurm-unreachable"


@pytest.mark.parametrize(
    ("state", "restarts", "why", "cause", "says"),
    [
        ("CANCELLED", 0, "", "slurm-job-ended", "it was cancelled"),
        ("COMPLETING", 0, "", "slurm-job-ended", "it was cancelled"),
        ("COMPLETING", 0, " DUE TO TIME LIMIT", "slurm-job-ended", "its time limit is over (01:00:00)"),
        ("TIMEOUT", 0, "", "slurm-job-ended", "its time limit is over (01:00:00)"),
        ("NODE_FAIL", 0, "", "slurm-job-ended", "one of its nodes failed"),
        ("COMPLETING", 0, " DUE TO PREEMPTION", "slurm-job-ended", "due to preemption"),
        ("PENDING", 1, " DUE TO JOB REQUEUE", "slurm-job-ended", "was requeued"),
        ("RUNNING", 1, " DUE TO JOB REQUEUE", "slurm-job-ended", "was requeued"),
        ("PENDING", 0, "", "slurm-no-allocation", "has not started"),
        ("SOMETHING_NEW", 0, "", "slurm-job-ended", "has ended"),
    ],
)
def test_how_a_job_ended(state: str, restarts: int, why: str, cause: str, says: str) -> None:
    told = no_step_failure(replace(job(), state=state, restarts=restarts), "gn01", (CANCELLED.format(why),))
    assert told is not None
    assert told.cause == cause
    assert says in told.says


def test_a_job_that_runs_again_after_a_requeue_has_its_steps() -> None:
    assert no_step_failure(replace(job(), restarts=1), "gn01") is None


def test_a_step_that_was_cancelled_alone_is_not_the_job() -> None:
    told = no_step_failure(job(), "gn01", (CANCELLED.format(""),))
    assert told is not None
    assert "job 12 itself runs on" in told.says


def test_a_node_of_another_job() -> None:
    told = no_step_failure(job(), "gn03")
    assert told is not None
    assert told.cause == "slurm-node-not-in-job"
    assert no_step_failure(job(), "gn02") is None


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("srun: error: Unable to confirm allocation for job 99: Invalid job id specified", "slurm-job-unknown"),
        ("srun: error: Unable to create step for job 2: Access/permission denied", "slurm-job-unknown"),
        ('scontrol: error: Munge encode failed: Failed to connect to "/run/munge/munge.socket.2"', "slurm-auth-failed"),
        ("slurm_load_jobs error: Protocol authentication error", "slurm-auth-failed"),
        (
            "srun: error: Task launch for StepId=1.0 failed on node node-b: Zero Bytes were transmitted or received",
            "slurm-auth-failed",
        ),
        (
            "srun: error: Task launch for StepId=1.3 failed on node node-b: Communication connection failure",
            "slurm-unreachable",
        ),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "slurm-unreachable"),
    ],
)
def test_the_words_of_srun_and_scontrol(words: str, cause: str) -> None:
    told = slurm_stderr_failure(words, "99", "node-b")
    assert told is not None
    assert told.cause == cause


def test_an_order_that_was_given_up_is_no_credential_that_was_refused() -> None:
    words = "srun: error: Task launch for StepId=1.0 failed on node node-b: Zero Bytes were transmitted or received"
    told = slurm_stderr_failure(words, "1", "node-b", seconds=10.1)
    assert told is not None
    assert told.cause == "slurm-unreachable"
    assert "full-size packets" in told.says


def test_words_that_tell_nothing_are_nobodys_fault() -> None:
    assert (
        slurm_stderr_failure("srun: Job step aborted: Waiting up to 5 seconds for job step to finish.", "99", "node-b")
        is None
    )


# The inventory of a job.


@pytest.mark.parametrize(
    "named", ["slurm:", "slurm:abc", "slurm:4;5", "slurm:-1", "slurm:1_", "slurm:1 2", "slurm:\n1"]
)
def test_what_can_be_no_job_is_refused_and_nobody_is_asked(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FilesWrong) as caught:
        inventory_source(named)
    assert [problem.id for problem in caught.value.problems] == ["slurm-job-unknown"]


def test_a_job_becomes_an_inventory_that_loads() -> None:
    nodes = [SlurmNode(name, f"10.0.0.{n}", (), silent=False, reason="") for n, name in enumerate(job().nodes, 1)]
    made = draft_text(draft_of_job(job(), nodes, job().gpus, 20_132))
    inventory = examine_inventory(parse_document(made, "slurm:12")).inventory
    assert inventory is not None, made
    assert [node.name for node in inventory.nodes] == ["gn01", "gn02", "login1"]
    assert [node.gpus for node in inventory.nodes] == [(0, 1, 3, 5), (0, 1, 3, 5), ()]
    assert {(node.connection, node.slurm.job) for node in inventory.nodes} == {("slurm", "12")}
    assert inventory.rendezvous.port == 20_132
    assert inventory.network.ports == ((20_132, 20_142),)


def test_a_port_is_free_with_those_behind_it() -> None:
    first = first_free_port_block(job(), ())
    assert first in JOB_PORTS
    assert first_free_port_block(job(), {first + PORTS_PER_JOB - 1}) == first + PORTS_PER_JOB
    assert first_free_port_block(replace(job(), id="13"), ()) != first


def test_the_kernels_tables_of_sockets_are_read() -> None:
    table = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
  sl  local_address                         remote_address                        st
  11: 00000000000000000000000000000000:4E2B 00000000000000000000000000000000:0000 0A 0
"""
    assert used_local_ports(table) == {29_500, 20_011}
