"""`--shell`: an inventory read as if it said so itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.files.inventory import load_inventory, with_shell


def write(folder: Path, shell: str | None, rest: str) -> Path:
    file = folder / "inventory.yml"
    file.write_text(f"defaults: {{gpus: 1{f', shell: {shell}' if shell else ''}}}\n{rest}")
    return file


@pytest.mark.parametrize("before", [None, "sh", "bat", "ps1"])
@pytest.mark.parametrize("after", ["sh", "bat", "ps1"])
@pytest.mark.parametrize(
    "rest",
    [
        "nodes: {a: {}, b: {python: /opt/python}}\n",
        "nodes: {a: {gpus: 0}, b: {}}\n",
        "rendezvous: {backend: gloo}\nnodes: {a: {}}\n",
        "rendezvous: {backend: nccl, port: 1234}\nnodes: {a: {python: py}}\n",
    ],
)
def test_it_is_as_if_the_file_said_so(before: str | None, after: str, rest: str, tmp_path: Path) -> None:
    given = with_shell(*load_inventory(write(tmp_path, before, rest)), after)
    assert given == load_inventory(write(tmp_path, after, rest))[0]
