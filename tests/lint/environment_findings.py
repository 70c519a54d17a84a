"""Text of an inventory or a playbook in, what the rules about environment variables say out."""

from __future__ import annotations

from pathlib import Path

from runbook.lint.findings import LintFinding
from runbook.lint.run import lint

TWO_GPU_NODES = """\
defaults: {gpus: 8}
nodes:
  node-a: {address: 10.0.0.1}
  node-b: {address: 10.0.0.2}
"""


def findings(folder: Path, text: str, *, playbook: str | None = None) -> list[LintFinding]:
    """Those of `env.*`, of an inventory, or of a playbook that names it as `inventory.yml`."""
    (folder / "inventory.yml").write_text(text, encoding="utf-8")
    paths = [str(folder / "inventory.yml")]
    if playbook is not None:
        (folder / "playbook.yml").write_text(playbook, encoding="utf-8")
        paths = [str(folder / "playbook.yml")]
    return [finding for finding in lint(paths).findings if finding.rule.id.startswith("env.")]


def ids(found: list[LintFinding]) -> list[str]:
    return [finding.rule.id.removeprefix("env.") for finding in found]


def with_variable(name: str, text: str) -> str:
    """An inventory of two GPU nodes that sets one variable, whatever its text."""
    quoted = "'" + text.replace("'", "''") + "'"
    return f"env:\n  {name}: {quoted}\n{TWO_GPU_NODES}"
