"""Dumps of py-spy: which process waits for the others, and which one they wait for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runbook.parsers.python_stacks import read_py_spy

REDUCES = """\
    all_reduce (torch/distributed/distributed_c10d.py:2219)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:46)
    <module> (train.py:90)"""
SYNCHRONIZES = """\
    synchronize (torch/cuda/__init__.py:792)
    step (train.py:46)
    <module> (train.py:90)"""
UPLOADS = """\
    read (ssl.py:1103)
    recv_into (ssl.py:1251)
    send (requests/adapters.py:667)
    upload (tracker/client.py:212)
    <module> (train.py:90)"""
LOADS = """\
    wait (threading.py:324)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1133)
    <module> (train.py:90)"""
READS_AN_ITEM = """\
    acquire (threading.py:168)
    __getitem__ (lepi/dataset.py:91)
    _worker_loop (torch/utils/data/_utils/worker.py:308)"""
COMPUTES = """\
    forward (model.py:12)
    _call_impl (torch/nn/modules/module.py:1750)
    forward (torch/nn/parallel/distributed.py:1523)
    step (train.py:44)"""
BESIDE = 'Thread 0x7F3A (idle): "Thread-4 (_heartbeat)"\n    wait (threading.py:359)\n    beat (heartbeat.py:55)\n'


def dump(pid: int, frames: str) -> str:
    heading = f"Process {pid}: python train.py\nPython v3.12.7 (/usr/bin/python3.12)\n\n"
    return f'{heading}Thread {pid} (active): "MainThread"\n{frames}\n{BESIDE}'


@pytest.mark.parametrize(
    ("stacks", "causes", "says"),
    [
        ((REDUCES, REDUCES, UPLOADS), ["rank-behind"], "process 3 stands in upload (tracker/client.py:212)"),
        ((SYNCHRONIZES, LOADS, SYNCHRONIZES), ["rank-behind"], "process 2 stands in <module> (train.py:90)"),
        ((REDUCES, REDUCES), ["collective-stall-uniform"], "in all_reduce"),
        ((LOADS, LOADS), ["training-stalled"], "data loaders"),
        ((LOADS, LOADS, READS_AN_ITEM), ["training-stalled"], "__getitem__ (lepi/dataset.py:91)"),
        ((REDUCES, REDUCES, READS_AN_ITEM), ["collective-stall-uniform"], "the 2 processes"),
        ((REDUCES,), [], ""),
        ((UPLOADS,), [], ""),
        ((COMPUTES, COMPUTES), [], ""),
        ((READS_AN_ITEM, READS_AN_ITEM), [], ""),
    ],
)
def test_a_process_is_behind_only_where_others_wait_for_it(stacks: Sequence[str], causes: list[str], says: str) -> None:
    reading = read_py_spy("\n".join(dump(pid, frames) for pid, frames in enumerate(stacks, 1)))
    assert reading
    assert [fault.cause for fault in reading.faults] == causes
    assert all(says in fault.says for fault in reading.faults)
    assert reading.unknown  # whoever stands somewhere may go on


def test_a_dump_is_told_by_its_lines_and_other_text_is_none() -> None:
    text = dump(1, REDUCES) + dump(2, UPLOADS)
    reading = read_py_spy(text)
    assert reading
    assert text.split("\n")[reading.faults[0].lines[0] - 1] == 'Thread 2 (active): "MainThread"'
    assert read_py_spy("step 1 loss 2.1\n") is None
    assert read_py_spy(BESIDE) is None


def test_a_thread_that_is_numbered_by_its_address_has_the_number_of_its_process() -> None:
    text = dump(41, REDUCES) + dump(42, UPLOADS).replace("Thread 42", "Thread 0x7FD2")
    reading = read_py_spy(text)
    assert reading
    assert reading.faults[0].says.startswith("process 42 ")
