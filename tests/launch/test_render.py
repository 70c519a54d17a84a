"""From an inventory to scripts that run: what the ranks of a node find when they are started by them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.launch.launchers import ranks_spec
from runbook.launch.quote import CannotQuote
from runbook.launch.ranks import rank_layout
from runbook.launch.script import Script, make_script
from runbook.model.inventory import Inventory, Node
from runbook.model.secrets import Secret

from .inventories import cluster, node
from .specs import put
from .test_script import SHELLS, run

SHOW = "import os, sys\nprint(*(f'{k}={v}' for k, v in sorted(os.environ.items())), sep='\\n')\nsys.exit(int(os.environ['RANK']))\n"


def rendered(inventory: Inventory, name: str, shell: str = "sh") -> Script:
    by_node = rank_layout(inventory)
    return make_script(ranks_spec(by_node, by_node.by_node[name], name="small", made_from=("inventory x.yml",)), shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_rank_gets_its_own_numbers(shell: str, tmp_path: Path) -> None:
    one = node("node-b", "10.0.0.2", gpus=(4, 1), python=sys.executable)
    path = put(tmp_path, rendered(cluster(node("node-a", gpus=(0,)), one), "node-b"))
    (tmp_path / "rank.py").write_text(SHOW)
    for local_rank, rank in enumerate(("1", "2")):
        done = run(shell, path, str(local_rank))
        assert (done.returncode, done.stderr) == (int(rank), "")
        env = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (rank, str(local_rank), "3")
        assert (env["CUDA_VISIBLE_DEVICES"], env["MASTER_ADDR"], env["NODE_RANK"]) == ("1,4", "10.0.0.1", "1")
    assert run(shell, path).returncode in (1, 2)  # whichever failed first


def test_a_torchrun_around_us_is_not_asked(tmp_path: Path) -> None:
    one = node("node-a", python=sys.executable)
    path = put(tmp_path, rendered(cluster(one), "node-a"))
    (tmp_path / "rank.py").write_text(SHOW)
    done = run("sh", path, "0", TORCHELASTIC_USE_AGENT_STORE="True", PET_NNODES="4")
    assert "TORCHELASTIC" not in done.stdout
    assert "PET_" not in done.stdout


@pytest.mark.parametrize(
    "one",
    [
        node("node-a", env={"A": "x\ny"}),
        node("node-a", env={"A": Secret("x\ny", "T")}),
        node("node-a", env={"A;id": "x"}),
        node("node-a", activate="a\nb"),
        node("node-a", python="a\nb"),
    ],
)
def test_what_a_script_cannot_carry_is_refused(one: Node) -> None:
    for shell in ("sh", "bat", "ps1"):
        with pytest.raises(CannotQuote):
            rendered(cluster(one), "node-a", shell)


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_the_same_meaning_in_every_shell(shell: str) -> None:
    """Every variable of the node and of its ranks stands in the script of any shell, once, by name and value."""
    one = node("node-a", gpus=(0, 2), env={"OPEN": "1", "TOKEN": Secret("x", "T")}, activate="conda activate train")
    script = rendered(cluster(one, node("node-b", "10.0.0.2")), "node-a", shell)
    assert sorted(script.files) == sorted([f"small.{shell}", "small.env" if shell == "sh" else f"small.env.{shell}"])
    text = script.files[script.name].decode("utf-8-sig")
    forms = {"sh": "export {}={}\n", "bat": 'set "{}={}"\r\n', "ps1": "$env:{} = '{}'\r\n"}
    for key, value in (
        ("OPEN", "1"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("WORLD_SIZE", "3"),
        ("RANK", "1"),
        ("LOCAL_RANK", "0"),
    ):
        assert text.count(forms[shell].format(key, value)) == 1
    assert "TOKEN" not in text


def test_the_script_runs_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import os\nprint(os.getcwd())\n")
    put(tmp_path, rendered(cluster(node("node-a", python=sys.executable)), "node-a"))
    for start, path in ((tmp_path, "small.sh"), (tmp_path.parent, f"./{tmp_path.name}/small.sh")):
        environ = {"PATH": os.environ["PATH"], "HOME": "/", "CDPATH": "/tmp:/"}
        done = subprocess.run(
            ["sh", path], cwd=start, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "")
