"""Installed from a wheel, in an empty folder, it is the same tool: everything it needs comes along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("wheel")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=300)
    return target


def run(installed: Path, folder: Path, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runbook", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed), "HOME": str(installed.parent)},  # `workdir: ~/.runbook`
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_it_is_the_wheels_own_code(installed: Path, tmp_path: Path) -> None:
    code = "import runbook, pathlib; print(pathlib.Path(runbook.__file__).parent)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == installed / "runbook"


def test_the_shipped_playbook_runs_by_its_name(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed, tmp_path, "run", "two_node_allreduce", "-o", "json", "-t", "untagged", "--report", timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "pass"
    assert str(installed) in document["playbook"]
    assert "PASS" in (tmp_path / document["run_dir"] / "report.html").read_text()


def test_plan_explain_and_completion_need_only_the_wheel(installed: Path, tmp_path: Path) -> None:
    plan = run(installed, tmp_path, "run", "two_node_allreduce", "-i", "two_node", "-C")
    assert plan.returncode == 0, plan.stderr
    assert "10.232.194.226:29500" in plan.stdout
    assert list(tmp_path.iterdir()) == []
    assert run(installed, tmp_path, "explain", "ping").stdout.startswith("# ping")
    assert "two_node_allreduce" in run(installed, tmp_path, "completion", "bash").stdout


def test_planning_for_ssh_nodes_imports_neither_torch_nor_ssh(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from runbook.cli.main import main; "
        "main(['run', 'two_node_allreduce', '-i', 'two_node', '-C']); "
        "print(sorted({'torch', 'fabric', 'paramiko', 'jsonschema', 'rich'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"
