from __future__ import annotations

import pytest

from runbook.files.node_sets import select_nodes
from runbook.model.errors import FilesWrong, Span
from runbook.model.inventory import Inventory, Node, Rendezvous

NODES = ("head", "gn01", "gn02", "gn03", "gn04", "win-a")
INVENTORY = Inventory(
    "lab",
    tuple(Node(name, name) for name in NODES),
    Rendezvous("head", "head"),
    groups={"rack1": ("gn01", "gn02"), "rack2": ("gn03", "gn04"), "odd": ("gn01", "gn03")},
)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", "head gn01 gn02 gn03 gn04 win-a"),
        ("gn03", "gn03"),
        ("rack1", "gn01 gn02"),
        ("gn[02-03]", "gn02 gn03"),
        ("gn[01,04]", "gn01 gn04"),
        ("gn*", "gn01 gn02 gn03 gn04"),
        ("gn0?", "gn01 gn02 gn03 gn04"),
        ("*[ad]", "head win-a"),
        ("gn04:head", "head gn04"),
        ("gn04, head", "head gn04"),
        ("rack1,rack2", "gn01 gn02 gn03 gn04"),
        ("all:!rack1", "head gn03 gn04 win-a"),
        ("!rack1", "head gn03 gn04 win-a"),
        ("rack1:&odd", "gn01"),
        ("&odd", "gn01 gn03"),
        ("!gn01:rack1", "gn02"),
        ("gn[01-04]:!gn[02,03]", "gn01 gn04"),
        ("rack1:rack2:&odd:!gn03", "gn01"),
    ],
)
def test_selection_in_rank_order(pattern: str, names: str) -> None:
    assert [node.name for node in select_nodes(pattern, INVENTORY)] == names.split()


@pytest.mark.parametrize(
    ("pattern", "id", "help"),
    [
        ("rak1", "pattern.unknown-name", "did you mean `rack1`?"),
        ("gn[03-06]", "pattern.unknown-name", "known here: rack1, rack2, odd, gn01, gn02, gn03, gn04, head, win-a"),
        ("x*", "pattern.unknown-name", None),
        ("rack1:!rack1", "pattern.empty", None),
        ("", "pattern.syntax", None),
        ("a::b", "pattern.unknown-name", None),
        ("!", "pattern.syntax", None),
        ("gn[4-1]", "pattern.syntax", None),
        ("gn[1-9999999]", "pattern.syntax", None),
        ("gn0[1:4]", "pattern.syntax", "write gn0[1-4]"),
        ("gn0{1..4}", "pattern.syntax", "write gn0[1-4]"),
        ("win-[a:c]:head", "pattern.syntax", None),
        ("gn0[1:4:2]", "pattern.syntax", None),
    ],
)
def test_what_selects_nothing_is_an_error(pattern: str, id: str, help: str | None) -> None:
    span = Span("p.yml", 3, 8)
    with pytest.raises(FilesWrong) as wrong:
        select_nodes(pattern, INVENTORY, span)
    first = wrong.value.problems[0]
    assert (first.id, first.span) == (id, span)
    if help:
        assert first.help == help


def test_every_unknown_name_is_told() -> None:
    with pytest.raises(FilesWrong) as wrong:
        select_nodes("one:two:!three", INVENTORY)
    assert len(wrong.value.problems) == 3
