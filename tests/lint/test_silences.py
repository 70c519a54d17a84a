from __future__ import annotations

from pathlib import Path

import pytest

from .write import PAIR, ids, write

OCTAL = "{address: 10.0.0.1, vars: {mode: 0644}}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"nodes:\n  a: {OCTAL}  # noqa: yaml.octal\n", []),
        (f"nodes:\n  a: {OCTAL}  #noqa:yaml.octal\n", []),
        (f"nodes:\n  a: {OCTAL}  # NOQA : yaml.octal  it is a mode\n", []),
        (f"nodes:\n  a: {OCTAL}  # a mode # noqa: yaml.octal\n", []),
        (f"nodes:\n  # noqa: yaml.octal\n  a: {OCTAL}\n", []),
        (f"nodes:\n  # noqa: yaml.octal\n\n  # more\n  a: {OCTAL}\n", []),
        (f"nodes:\r\n  a: {OCTAL}  # noqa: yaml.octal\r\n", []),
        (f"nodes:\n  # noqa: yaml.octal\n  b: {{}}\n  a: {OCTAL}\n", ["2 silence.unused", "4 yaml.octal"]),
        (f"nodes:\n  a: {OCTAL}  # noqa: yaml.date\n", ["2 silence.unused", "2 yaml.octal"]),
        (f"nodes:\n  a: {OCTAL}  # noqa\n", ["2 silence.bare", "2 yaml.octal"]),
        (f"nodes:\n  a: {OCTAL}  # noqa:\n", ["2 silence.bare", "2 yaml.octal"]),
        (f"nodes:\n  a: {OCTAL}  # noqa: yaml.octal, yaml.octla\n", ["2 silence.unknown-rule"]),
        (f"nodes:\n  a: {OCTAL}  # noqa: yaml.octal yaml.date\n", ["2 silence.unused"]),
        (f"nodes:\n  a: {OCTAL}  # noqa: silence.unused\n", ["2 silence.refused", "2 yaml.octal"]),
        (f"nodes:\n  a: {OCTAL}  # noqas are fine\n", ["2 yaml.octal"]),
        ('nodes:\n  a: {address: 10.0.0.1, vars: {x: "a # noqa: yaml.octal"}}\n', []),
        ("nodes:\n  a: {address: 10.0.0.1, vars: {x: a#noqa, y: 'it # noqa'}}\n", []),
        (
            "nodes:\n  a:\n    address: 10.0.0.1\n    vars:\n      x: |\n        # noqa\n      y: >-\n        b # noqa\n",
            [],
        ),
        (
            "nodes:\n  a:\n    address: 10.0.0.1\n    vars:\n      x: |\n        text\n      # noqa\n",
            ["7 silence.bare"],
        ),
        (
            "nodes:\n  a:\n    address: 10.0.0.1\n    vars:\n      x: &t >-  # noqa\n        b # noqa\n      y: *t\n",
            ["5 silence.bare"],
        ),
        ('nodes:\n  a:\n    address: 10.0.0.1\n    vars: {"k # noqa": 1}\n', None),
    ],
)
def test_a_comment_silences_its_rule_on_its_line_and_nothing_else(
    tmp_path: Path, text: str, found: list[str] | None
) -> None:
    write(tmp_path, a_yml=text)
    told = [one.removeprefix("a.yml:") for one in ids(tmp_path / "a.yml")]
    if found is None:
        assert not any("silence" in one for one in told)
    else:
        assert sorted(told) == sorted(found)


def test_what_keeps_a_file_from_being_used_is_told_whatever_a_comment_says(tmp_path: Path) -> None:
    write(tmp_path, a_yml=PAIR + "  node-c: {adress: 10.0.0.3}  # noqa: inventory.unknown-key\n")
    assert ids(tmp_path / "a.yml") == ["a.yml:4 inventory.unknown-key", "a.yml:4 silence.refused"]


def test_a_pattern_of_a_group_cannot_be_silenced_though_one_of_a_playbook_can(tmp_path: Path) -> None:
    group = "groups:\n  rack1: {nodes: gone}  # noqa: pattern.unknown-name\n"
    play = "inventory: a.yml\nnodes: gone  # noqa: pattern.unknown-name  with -i it is there\nstages: [{check: ping}]\n"
    write(tmp_path, a_yml=PAIR, b_yml=PAIR + group, c_yml=play)
    assert ids(tmp_path / "b.yml") == ["b.yml:5 pattern.unknown-name"]
    assert ids(tmp_path / "c.yml") == []


def test_nobody_is_told_of_unused_silences_before_the_file_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, a_yml=PAIR + "  node-c: {gpus: x}\n  node-d: {}  # noqa: yaml.octal\n")
    assert ids(tmp_path / "a.yml") == ["a.yml:4 inventory.wrong-type"]
    write(tmp_path, a_yml="nodes:\n  a: {  # noqa\n")
    assert all("yaml.syntax" in one for one in ids(tmp_path / "a.yml"))
