"""Lines of launchers, taken apart: as people type them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.launch.launcher_lines import launcher_line


@pytest.mark.parametrize(
    ("line", "name", "launcher", "program"),
    [
        ("torchrun --nnodes=2 --nproc_per_node 8 train.py --lr 0.1", "torchrun", "torchrun", "train.py --lr 0.1"),
        ("/opt/venv/bin/torchrun --standalone -m pkg.train -m x", "torchrun", "torchrun", "python -m pkg.train -m x"),
        ("srun --ntasks-per-node=1 torchrun train.py", "torchrun", "torchrun", "train.py"),
        ("srun bash -c 'cd /w && torchrun train.py'", "torchrun", "torchrun", "train.py"),
        ("env A=b nohup python3 -u -m torch.distributed.run t.py", "-m torch.distributed.run", "torchrun", "t.py"),
        (
            "python -m torch.distributed.launch --use_env t.py",
            "-m torch.distributed.launch",
            "torch.distributed.launch",
            "t.py",
        ),
        ("mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG /opt/bin/python3.11 t.py", "mpirun", None, "/opt/bin/python3.11 t.py"),
        ("deepspeed --hostfile hosts t.py --zero 3", "deepspeed", None, "t.py --zero 3"),
        ("accelerate launch --num_processes 16 t.py", "accelerate launch", None, "t.py"),
        ("srun -N2 ./all_reduce_perf -b 8", "srun", None, ""),
    ],
)
def test_whose_line_it_is_and_what_it_starts(line: str, name: str, launcher: str | None, program: str) -> None:
    found = launcher_line(shlex.split(line))
    assert found is not None
    assert (found.name, found.launcher, list(found.program)) == (name, launcher, shlex.split(program))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python train.py --launcher torchrun",
        "python train.py -m torch.distributed.run",
        "bash -c 'echo torchrun; torchrunner x.py'",
        "accelerate env",
        "sh run.sh",
    ],
)
def test_a_line_without_a_launcher(line: str) -> None:
    assert launcher_line(shlex.split(line)) is None


def test_options_are_those_of_the_innermost_launcher_and_not_of_the_program() -> None:
    found = launcher_line(
        shlex.split("srun --nodes=4 torchrun --nproc_per_node=8 --rdzv-endpoint gn1:29500 t.py --nnodes 7")
    )
    assert found is not None
    assert found.options == {"nproc-per-node": "8", "rdzv-endpoint": "gn1:29500"}


@given(st.lists(st.sampled_from(["srun", "env", "bash", "-c", "-m", "torchrun", "t.py", "--a", "bash -c 'srun t.py'"])))
def test_the_program_is_the_end_of_the_line(words: list[str]) -> None:
    found = launcher_line(words)
    if found is not None and found.program and "bash" not in words:
        program = list(found.program)
        assert words[-len(program) :] == program or words[1 - len(program) :] == program[1:]
