"""The examples on the page are true: what is called bad has that finding, and what is called good has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.lint.findings import lint_rules

from .environment_findings import findings, ids

RULES = [id for id in lint_rules() if id.startswith("env.")]
NODES = """\
nodes:
  node-a: {address: 10.0.0.1}
  node-b: {address: 10.0.0.2}
"""


def examples(rule: str) -> dict[str, str]:
    blocks = re.findall(r"```yaml\n# (bad|good)[^\n]*\n(.*?)```", lint_rules()[rule].text, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bad", "good"]
    return dict(blocks)


def completed(rule: str, example: str) -> str:
    """The rest of an inventory around an example; eight GPUs unless the example speaks of them itself."""
    text = example if "nodes:" in example else example + NODES
    speaks = "gpus" in text or "defaults:" in text or "shell:" in text
    return text if speaks or rule == "env.nccl-unused" else text + "defaults: {gpus: 8}\n"


@pytest.mark.parametrize("rule", RULES)
def test_the_bad_example_is_bad(rule: str, tmp_path: Path) -> None:
    assert rule.removeprefix("env.") in ids(findings(tmp_path, completed(rule, examples(rule)["bad"])))


@pytest.mark.parametrize("rule", RULES)
def test_the_good_example_is_good(rule: str, tmp_path: Path) -> None:
    assert ids(findings(tmp_path, completed(rule, examples(rule)["good"]))) == []
