"""The examples of the pages are what they are called: the bad one has the finding, the good one has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.lint.findings import lint_rules, parse_rule_page, rule_pages
from runbook.lint.run import lint

WHOLE = ("access", "gpus", "network", "node_values", "security")
"""Pages whose examples are whole files."""
OTHERS = (
    "inventory.rendezvous-taken",
    "playbook.rank-in-command",
    "playbook.loopback-in-command",
    "playbook.jax-on-windows",
)
"""Rules of other pages whose examples are."""
RULES = [rule for page in WHOLE for rule in parse_rule_page(rule_pages()[page])] + [lint_rules()[id] for id in OTHERS]
EXAMPLES = [
    pytest.param(rule.id, example, id=f"{rule.id}-{number}")
    for rule in RULES
    for number, example in enumerate(re.findall(r"```yaml\n(.*?)```", rule.text, re.DOTALL))
]
CLUSTERS = {
    "two_node.yml": "defaults: {gpus: 8}\nnodes:\n  node-a: {address: 10.9.0.1}\n  node-b: {address: 10.9.0.2}\n",
    "windows_single_gpu.yml": "nodes:\n  desk: {address: 192.168.1.20, shell: bat, gpus: 1}\n",
}
"""What the examples of playbooks name."""


@pytest.mark.parametrize(("id", "example"), EXAMPLES)
def test_an_example_is_what_it_is_called(id: str, example: str, tmp_path: Path) -> None:
    kind = example.splitlines()[0]
    assert kind.startswith(("# bad", "# good"))
    (tmp_path / "example.yml").write_text(example, encoding="utf-8")
    for name, text in CLUSTERS.items():
        if name in example:
            (tmp_path / name).write_text(text, encoding="utf-8")
    if kind.startswith("# bad, if another inventory"):
        (tmp_path / "another.yml").write_text(example, encoding="utf-8")
    found = {finding.rule.id for finding in lint([str(tmp_path)]).findings}
    assert found == ({id} if kind.startswith("# bad") else set())


def test_every_rule_has_a_good_example() -> None:
    for rule in RULES:
        assert "```yaml\n# good" in rule.text, rule.id
