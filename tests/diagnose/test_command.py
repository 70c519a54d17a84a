"""`runbook diagnose`: what it reads, how it ends, what it prints."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import re
import sys
import tarfile
from pathlib import Path

import pytest

from runbook.cli.main import main
from runbook.diagnose.sources.own_runs import read_own_run
from runbook.node import __file__ as node_room

from .read import causes_in, diagnose

KILLED = "train.py FAILED\n  host      : gn2\n  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
HEALTHY = "epoch 1 loss 2.3\nepoch 2 loss 2.1\n"
WRAPPED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def test_a_cause_is_told_with_its_line_rank_and_node(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("hello\n" + KILLED)
    told = diagnose(log)
    assert told.exit_code == 0
    first = told.causes[0]
    assert set(first) == {"cause", "confidence", "rank", "node", "evidence", "says", "remedy"}
    assert (first["cause"], first["confidence"], first["rank"], first["node"]) == ("rank-killed", "high", 3, "gn2")
    assert first["evidence"] == [{"file": str(log), "line": 5, "text": "exitcode  : -9 (pid: 7)"}]
    assert first["remedy"]


def test_healthy_logs_have_no_cause(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY)
    told = diagnose(tmp_path)
    assert (told.exit_code, told.causes) == (0, [])


@pytest.mark.parametrize("text", [WRAPPED, "", "\n\n"])
def test_logs_that_do_not_tell_say_what_to_switch_on(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    told = diagnose(tmp_path / "job.log")
    assert (told.exit_code, told.first, len(told.causes)) == (1, "insufficient-evidence", 1)
    assert "--tee 3" in told.causes[0]["remedy"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lambda data: gzip.compress(data)[:-6]])
def test_packed_logs_are_unpacked_even_when_they_break_off(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "job.log.1").write_bytes(pack((HEALTHY + KILLED).encode()))
    assert diagnose(tmp_path).first == "rank-killed"


def test_what_powershell_redirects_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("﻿" + KILLED, encoding="utf-16-le")
    assert diagnose(tmp_path).first == "rank-killed"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(KILLED.encode())))
    told = diagnose("-")
    assert told.causes[0]["evidence"][0]["file"] == "-"


def test_trees_of_torchrun_slurm_and_our_own_runs(tmp_path: Path) -> None:
    torchrun = tmp_path / "tree" / "job_1" / "attempt_0" / "1"
    torchrun.mkdir(parents=True)
    (torchrun / "stderr.log").write_text("Traceback (most recent call last):\nKeyError: 'no such column'\n")
    (torchrun / "stdout.log").write_text("")
    told = diagnose(tmp_path / "tree")
    assert (told.first, told.causes[0]["rank"]) == ("program-error", 1)

    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "slurm-12.out").write_text("srun: error: gn1: task 3: Out Of Memory\n")
    assert diagnose(tmp_path / "slurm").first == "rank-killed"

    ours = tmp_path / "run"
    (ours / "logs").mkdir(parents=True)
    (ours / "events.jsonl").write_text('{"says": "exitcode: -11"}')
    (ours / "logs" / "rank-00002.node-b.log").write_text("Fatal Python error: Segmentation fault\n")
    told = diagnose(ours)
    assert (told.first, told.causes[0]["rank"], told.causes[0]["node"]) == ("rank-crashed", 2, "node-b")


def test_what_is_not_there_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path / "nowhere.log"), str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "nowhere.log" in said.err
    assert "holds no log" in said.err


def test_the_page_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text(KILLED)
    (tmp_path / "b.log").write_text("RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.2]:1234\n")
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("rank-killed · rank 3, gn2\n")
    assert f"{tmp_path / 'a.log'}:4: exitcode : -9 (pid: 7)" in said
    assert "follows    peer-died" in said
    assert "more       runbook explain rank-killed" in said
    told = [(one["cause"], one.get("follows")) for one in diagnose(tmp_path).causes]
    assert told[:2] == [("rank-killed", None), ("peer-died", "rank-killed")]


def test_what_was_ruled_out_is_told_when_it_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text(
        "[E socket.cpp:957] [c10d] The client socket has timed out after 20s while trying to connect to (10.0.0.1, 29500).\n"
    )
    main(["diagnose", str(tmp_path)])
    said = capsys.readouterr().out
    assert "master-not-listening (likely)" in said
    assert "ruled out  name-unresolvable" in said


def test_nothing_in_a_log_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_bytes(b"KeyError: 'x\x1b]0;title\x07\x1b[2J\xff\xfe'\n")
    main(["diagnose", str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text(KILLED)
    main(["diagnose", "-o", "json", str(tmp_path)])
    said = capsys.readouterr()
    assert json.loads(said.out)["version"] == 1
    assert not said.err


def test_a_file_that_may_not_be_read_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.log").write_text(HEALTHY)
    (tmp_path / "shut.log").write_text(KILLED)
    # Root may read everything: what the system would say to anybody else.
    monkeypatch.setattr("os.access", lambda path, _mode: not str(path).endswith("shut.log"))
    told = diagnose(tmp_path)
    assert (told.exit_code, [cause["cause"] for cause in told.causes]) == (1, ["insufficient-evidence"])
    assert "shut.log" in told.causes[0]["says"]
    assert diagnose(tmp_path / "good.log").exit_code == 0


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
def test_a_device_is_no_log() -> None:
    assert main(["diagnose", "/dev/zero"]) == 2


BANNER = "*****************************************\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n*****************************************\n"
BOOTSTRAP = "gn1:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"


@pytest.mark.parametrize("text", [BANNER, BOOTSTRAP, "hello\n", "Namespace(lr=0.1)\nworld_size: 2\n"])
def test_a_log_that_only_begins_is_not_healthy(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    told = diagnose(tmp_path)
    assert (told.exit_code, told.first) == (1, "insufficient-evidence")
    assert told.causes[0]["says"].startswith("nothing failed so far")
    assert "py-spy" in told.causes[0]["remedy"]
    (tmp_path / "other.log").write_text("step 7 loss 1.2\n")
    assert diagnose(tmp_path).causes == []


def test_a_log_that_ends_after_its_setup_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(BOOTSTRAP + "gn1:10:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("no failure so far: ")
    log.write_text(log.read_text() + "all done in 12 s\n")
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("healthy: ")


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, RuntimeError, MemoryError, BrokenPipeError])
def test_what_a_rank_of_ours_says_of_its_flight_record_is_no_error_of_the_job(
    tmp_path: Path, error: type[Exception]
) -> None:
    program = Path(node_room).with_name("rank.py").read_text()  # nobody but `runbook run` may start it
    said = re.findall(r'sys\.stderr\.write\("(.*flight.*)\\n" %', program)
    assert len(said) == 1
    (tmp_path / "job.log").write_text(HEALTHY + said[0] % error.__name__ + "\n" + HEALTHY)
    assert diagnose(tmp_path / "job.log").causes == []


def test_bytes_that_are_no_text_are_not_healthy(tmp_path: Path) -> None:
    (tmp_path / "core.log").write_bytes(random.Random(1).randbytes(100_000))
    told = diagnose(tmp_path / "core.log")
    assert (told.exit_code, told.first) == (1, "insufficient-evidence")
    assert "is not text" in told.causes[0]["says"]
    hole = HEALTHY.encode() + bytes(100_000) + HEALTHY.encode()  # truncated while its writer went on
    (tmp_path / "hole.log").write_bytes(hole)
    assert diagnose(tmp_path / "hole.log").causes == []


def test_a_packed_log_that_breaks_off_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"step {at} loss {random.Random(at).random()}\n" for at in range(5000))
    packed = gzip.compress(text.encode())
    (tmp_path / "job.log.gz").write_bytes(packed[: len(packed) // 2])
    told = diagnose(tmp_path / "job.log.gz")
    assert (told.exit_code, told.first) == (1, "insufficient-evidence")
    assert "breaks off" in told.causes[0]["says"]
    (tmp_path / "job.log.gz").write_bytes(gzip.compress((text + KILLED).encode())[:-6])
    assert main(["diagnose", str(tmp_path / "job.log.gz")]) == 0
    assert "breaks off" in capsys.readouterr().out


def test_the_end_of_an_endless_line_is_read_and_that_it_was_cut_is_told(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("x" * 5_000_000 + " torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    told = diagnose(log)
    assert told.first == "gpu-out-of-memory"
    assert "OutOfMemoryError" in told.causes[0]["evidence"][0]["text"]
    log.write_text("step 1 loss 2.0\n" * 9 + "x" * 5_000_000 + "\n")
    told = diagnose(log)
    assert told.first == "insufficient-evidence"
    assert "only the end was read" in told.causes[0]["says"]


def test_a_mistake_of_another_ranks_program_follows_from_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank3.log").write_text(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    (tmp_path / "rank1.log").write_text("Traceback (most recent call last):\nKeyError: 'learning_rat'\n")
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gpu-out-of-memory · rank 3\n")
    assert "\nprogram-error · rank 1\n" in said
    assert "  follows " not in said


def test_slurm_names_the_node_of_a_killed_task() -> None:
    found = causes_in(
        job="slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.\nsrun: error: gpu07: task 3: Out Of Memory\n"
    )
    assert (found[0].cause, found[0].rank, found[0].node) == ("rank-killed", 3, "gpu07")


def test_one_line_is_one_proof(tmp_path: Path) -> None:
    (tmp_path / "dmesg.log").write_text(
        "[Sat Nov 21 10:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
    )
    told = diagnose(tmp_path / "dmesg.log")
    assert (told.first, len(told.causes[0]["evidence"])) == ("gpu-fell-off-bus", 1)


def test_the_folder_of_a_run_tells_what_that_run_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"cause": "firewall-drop", "says": "node-b drops TCP 29500: nft rule 7", "remedy": "allow it", "evidence": ["no answer"], "peers": []}  # fmt: skip
    outcome = {"node": "node-b", "verdict": "fail", "findings": [finding]}
    for name, causes in (("20261120-100000-aaaaaa", []), ("20261121-100000-bbbbbb", ["firewall-drop"])):
        run = tmp_path / name
        run.mkdir()
        (run / "events.jsonl").write_text("{}\n")
        said = {"verdict": "fail" if causes else "unknown", "stopped_at": "firewall", "causes": causes, "stages": [{"outcomes": [outcome]}]}  # fmt: skip
        (run / "result.json").write_text(json.dumps(said, indent=2))
    told = diagnose(tmp_path)
    assert "bbbbbb" in capsys.readouterr().err
    assert (told.exit_code, told.first, told.causes[0]["node"]) == (0, "firewall-drop", "node-b")
    assert "nft rule 7" in told.causes[0]["says"]
    interrupted = diagnose(tmp_path / "20261120-100000-aaaaaa")
    assert (interrupted.exit_code, interrupted.first) == (1, "insufficient-evidence")
    assert "firewall" in interrupted.causes[0]["says"]


def test_faults_of_different_nodes_do_not_follow_from_each_other(tmp_path: Path) -> None:
    def outcome(node: str, cause: str) -> dict[str, object]:
        finding = {"cause": cause, "says": f"{node}: {cause}", "remedy": "mend it", "evidence": [], "peers": []}
        return {"node": node, "verdict": "fail", "findings": [finding]}

    causes = ["ssh-refused", "ssh-auth-failed", "peer-died"]
    outcomes = [
        outcome("gn02", causes[0]),
        outcome("gn07", causes[1]),
        outcome("gn03", causes[0]),
        outcome("gn04", causes[2]),
    ]
    said = {"verdict": "fail", "stopped_at": "reach", "causes": causes, "stages": [{"outcomes": outcomes}]}
    (tmp_path / "events.jsonl").write_text("{}\n")
    (tmp_path / "result.json").write_text(json.dumps(said, indent=2))
    told = [(one.cause, one.node, one.follows) for one in read_own_run(tmp_path).causes]
    assert told == [
        ("ssh-refused", "gn[02-03]", None),
        ("ssh-auth-failed", "gn07", None),
        ("peer-died", "gn04", "ssh-refused"),
    ]


def test_limits_for_rdma_count_only_where_rdma_is(tmp_path: Path) -> None:
    limits = "$ cat /proc/self/limits\nLimit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              8388608              bytes\nMax open files            20000                20000                files\n"
    link = "$ rdma link show\nlink mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0\n"
    for name, files, first in (("bare", {"limits": limits}, False), ("with", {"limits": limits, "rdma": link}, True)):
        with tarfile.open(tmp_path / f"{name}.tgz", "w:gz") as archive:
            for file, text in files.items():
                member = tarfile.TarInfo(f"nodes/node-a/system/{file}.txt")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        told = diagnose(tmp_path / f"{name}.tgz")
        assert (told.first == "memlock-limit") is first


def test_what_two_archives_say_of_their_runs_is_no_health(tmp_path: Path) -> None:
    """One at a time it is read: a run of two may have failed though no rank printed an error."""
    log = b"step 1 loss 0.5\nstep 2 loss 0.4\ntraining finished\n"
    files = {"run/logs/rank-0.out": log, "run/result.json": b"{}", "manifest.json": b"{}", "README.txt": b"by runbook"}
    for name in ("one", "two"):
        with tarfile.open(tmp_path / f"{name}.tgz", "w:gz") as archive:
            for file, text in files.items():
                member = tarfile.TarInfo(file)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    told = diagnose(tmp_path / "one.tgz", tmp_path / "two.tgz")
    assert told.first == "insufficient-evidence"
