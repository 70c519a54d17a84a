"""Logs that real programs print here: torch over gloo, alone and under torchrun, failing in their own ways."""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ports import free_port

from .programs import Job, script
from .read import diagnose

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("temporary_folder_of_the_test"),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]

RANK_1_DIES = "if rank == 1: {how}"


@pytest.mark.thorough
def test_a_healthy_job_has_no_cause(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=60)
    with Job(tmp_path) as job:
        job.torchrun("--standalone", "--nproc_per_node=2", program)
    told = diagnose(job.logs)
    assert (told.exit_code, told.causes) == (0, [])


@pytest.mark.thorough
def test_a_killed_rank_is_the_root_and_the_survivor_follows(tmp_path: Path) -> None:
    # torchrun ends the survivor with TERM, perhaps before it has said what it saw: this one hears its broken peer first.
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    dies = RANK_1_DIES.format(how="os.kill(os.getpid(), signal.SIGKILL)")
    program = script(tmp_path, before=deaf, after=dies, timeout=60)
    with Job(tmp_path) as job:
        job.torchrun("--standalone", "--nproc_per_node=2", program)
    told = diagnose(job.logs)
    assert (told.exit_code, told.first) == (0, "rank-killed")
    assert told.causes[0]["rank"] == 1
    assert "peer-died" in [cause["cause"] for cause in told.causes]
    line = told.causes[0]["evidence"][0]
    assert line["text"] in Path(line["file"]).read_text().splitlines()[line["line"] - 1]


@pytest.mark.thorough
def test_a_segfault_is_a_crash(tmp_path: Path) -> None:
    program = script(tmp_path, after=RANK_1_DIES.format(how="import ctypes; ctypes.string_at(0)"), timeout=60)
    with Job(tmp_path) as job:
        job.torchrun("--standalone", "--nproc_per_node=2", program)
    assert diagnose(job.logs).first == "rank-crashed"


@pytest.mark.thorough
def test_an_exception_of_one_rank_beats_what_the_other_saw(tmp_path: Path) -> None:
    program = script(tmp_path, after=RANK_1_DIES.format(how="open('/data/shard-1.bin')"), timeout=60)
    port = free_port()
    with Job(tmp_path) as job:
        job.rank(program, 0, 2, port)
        job.rank(program, 1, 2, port)
    told = diagnose(job.logs)
    assert told.first == "program-error"
    assert told.causes[0]["rank"] == 1
    assert "shard-1.bin" in told.causes[0]["says"]


@pytest.mark.thorough
def test_the_survivor_alone_says_that_a_peer_died(tmp_path: Path) -> None:
    program = script(tmp_path, after=RANK_1_DIES.format(how="os._exit(3)"), timeout=60)
    port = free_port()
    with Job(tmp_path) as job:
        job.rank(program, 0, 2, port)
        job.rank(program, 1, 2, port)
    assert diagnose(job.logs / "rank0.log").first == "peer-died"


def test_a_rank_that_never_came(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=3)
    with Job(tmp_path) as job:
        job.rank(program, 0, 2, free_port())
    assert diagnose(job.logs).first == "ranks-missing"


@pytest.mark.thorough
def test_a_master_that_is_not_up(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=3)
    with Job(tmp_path) as job:
        job.rank(program, 1, 2, free_port())
    # On one machine the master's address is loopback, which on two would be the mistake.
    assert diagnose(job.logs).first in ("master-not-listening", "master-addr-loopback")


@pytest.mark.thorough
def test_machines_that_were_told_different_sizes(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=4)
    port = free_port()
    with Job(tmp_path) as job:
        job.rank(program, 0, 3, port)
        job.rank(program, 1, 2, port)
    assert diagnose(job.logs).first in ("world-size-mismatch", "ranks-missing")


@pytest.mark.thorough
def test_a_port_that_another_process_holds(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=3)
    with socket.socket(socket.AF_INET6) as holder, Job(tmp_path) as job:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("::", 0))
        holder.listen()
        job.rank(program, 0, 2, holder.getsockname()[1])
    assert diagnose(job.logs).first == "port-in-use"


@pytest.mark.thorough
def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    program = script(tmp_path, timeout=3)
    with Job(tmp_path) as job:
        # A label of more than 63 characters cannot be asked for: no resolver is contacted.
        job.rank(program, 1, 2, free_port(), MASTER_ADDR="n" * 64)
    assert diagnose(job.logs).first == "name-unresolvable"


@pytest.mark.thorough
def test_a_port_that_is_no_port(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.rank(script(tmp_path), 0, 2, 99999)
    assert diagnose(job.logs).first == "endpoint-malformed"


@pytest.mark.thorough
def test_a_program_started_without_a_launcher(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.start("alone", sys.executable, script(tmp_path))
    assert diagnose(job.logs).first == "not-launched-with-launcher"


@pytest.mark.thorough
def test_a_group_made_twice(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.rank(script(tmp_path, after='dist.init_process_group("gloo")'), 0, 1, free_port())
    assert diagnose(job.logs).first == "distributed-api-misuse"


@pytest.mark.thorough
def test_different_shapes_are_named_when_torch_looks(tmp_path: Path) -> None:
    program = script(tmp_path, after="dist.all_reduce(torch.ones(4 + rank))", timeout=60)
    port = free_port()
    with Job(tmp_path) as job:
        job.rank(program, 0, 2, port, TORCH_DISTRIBUTED_DEBUG="DETAIL")
        job.rank(program, 1, 2, port, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert diagnose(job.logs).first == "mismatched-collectives"


@pytest.mark.thorough
def test_a_late_rank_is_named_by_a_monitored_barrier(tmp_path: Path) -> None:
    late = "if rank == 1: time.sleep(6)\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=2))"
    program = script(tmp_path, after=late, timeout=30)
    port = free_port()
    with Job(tmp_path) as job:
        job.rank(program, 0, 2, port)
        job.rank(program, 1, 2, port)
    told = diagnose(job.logs)
    assert told.first == "rank-behind"


@pytest.mark.thorough
def test_nccl_on_a_build_without_it(tmp_path: Path) -> None:
    import torch

    if torch.distributed.is_nccl_available():
        pytest.skip("this torch has NCCL")
    with Job(tmp_path) as job:
        job.rank(script(tmp_path, backend="nccl"), 0, 1, free_port())
    assert diagnose(job.logs).first == "nccl-not-built-in"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGTERM, "terminated-from-outside"), (signal.SIGHUP, "terminal-closed")]
)
def test_a_launcher_that_is_told_to_end(tmp_path: Path, number: signal.Signals, cause: str) -> None:
    program = script(tmp_path, after='print("ready", flush=True); time.sleep(60)', timeout=60)
    with Job(tmp_path) as job:
        launcher = job.torchrun("--standalone", "--nproc_per_node=1", program)
        job.wait_for("torchrun", b"ready")
        os.kill(launcher.pid, number)
    assert diagnose(job.logs).first == cause


@pytest.mark.thorough
def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.torchrun("--standalone", "--nproc_per_node=1", tmp_path / "nowhere.py")
    assert diagnose(job.logs).first == "program-error"


@pytest.mark.thorough
def test_torchruns_own_tree_of_logs(tmp_path: Path) -> None:
    program = script(tmp_path, before="import nothing_of_that_name", timeout=60)
    with Job(tmp_path) as job:
        job.torchrun("--standalone", "--nproc_per_node=2", "--log-dir", tmp_path / "tree", "--redirects", "3", program)
    told = diagnose(tmp_path / "tree")
    assert told.first == "program-error"
    assert "nothing_of_that_name" in told.causes[0]["says"]
    assert told.causes[0]["rank"] in (0, 1)
