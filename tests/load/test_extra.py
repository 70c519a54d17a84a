from __future__ import annotations

from pathlib import Path

import pytest

from runbook.load.extra import parse_extra
from runbook.model.errors import FilesWrong


def test_the_three_forms(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("a: [1, 2]\nb: NO\nc: over\n")
    found = parse_extra([f"@{file}", "c=3", "d=0644", "e=true", "f=x=y", "g=", 'h="1"', '{"i": {"j": 1}, "d": null}'])
    assert found == {
        "a": [1, 2],
        "b": "NO",
        "c": 3,
        "d": None,
        "e": True,
        "f": "x=y",
        "g": "",
        "h": '"1"',
        "i": {"j": 1},
    }


@pytest.mark.parametrize(
    ("argument", "id"),
    [
        ("novalue", "extra.syntax"),
        ("=x", "extra.bad-name"),
        ("a-b=1", "extra.bad-name"),
        ("{bad", "extra.syntax"),
        ("@/nowhere/vars.yml", "file.missing"),
        ('{"a b": 1}', "extra.bad-name"),
        ("1=2", "extra.bad-name"),
        ("{" * 100000, "extra.syntax"),
        ('{"a": NaN}', "extra.syntax"),
        ('{"a": 1, "a": 2}', "extra.syntax"),
    ],
)
def test_what_is_refused(argument: str, id: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        parse_extra(["ok=1", argument])
    assert [problem.id for problem in wrong.value.problems] == [id]


def test_a_file_must_hold_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("- a\n")
    with pytest.raises(FilesWrong) as wrong:
        parse_extra([f"@{file}"])
    assert wrong.value.problems[0].id == "yaml.not-a-mapping"
