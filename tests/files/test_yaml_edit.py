"""Changes to a YAML file: what they leave alone, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.files.scalars import flow_yaml
from runbook.files.yaml_document import parse_document
from runbook.files.yaml_edit import Text, Uneditable

FILE = """\
# head
name: x   # the name

rendezvous: {master: a, port: 29500}  # where
env:
nodes:
  # about a
  a: {address: 10.0.0.1}   # first
  b:
    address: 10.0.0.2
    gpus: [0, 1]  # two

  # about c
  "c[1-2]": {address: "10.0.0.[3-4]"}
groups:
  r:
    nodes:
    - a
    - b
# end
"""


def text(data: str = FILE) -> Text:
    return Text(data, "group.yml", ("name", "order", "rendezvous", "network", "env", "nodes", "groups", "launch"))


def lines_changed(after: str, before: str = FILE) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


@pytest.mark.parametrize(
    ("keys", "value", "gone", "come"),
    [
        (("rendezvous", "port"), 1, ["rendezvous: {master: a, port: 29500}  # where"], ["rendezvous: {master: a, port: 1}  # where"]),
        (("order",), "name", [], ["order: name"]),
        (("network", "interface"), "eth0", [], ["network:", "  interface: eth0"]),
        (("env", "A"), "no", ["env:"], ['env: {A: "no"}']),
        (("nodes", "b", "gpus"), 4, ["    gpus: [0, 1]  # two"], ["    gpus: 4  # two"]),
        (("nodes", "b", "rack"), "r1", [], ["    rack: r1"]),
        (("nodes", "d"), {"address": "10.0.0.9"}, [], ["  d: {address: 10.0.0.9}"]),
        (("launch",), {"command": ["python", "-c", "1"]}, [], ["launch:", '  command: [python, -c, "1"]']),
        (("nodes", "a"), {"address": "10.0.0.1", "gpus": 2}, ["  a: {address: 10.0.0.1}   # first"], ["  a: {address: 10.0.0.1, gpus: 2}   # first"]),
    ],
)  # fmt: skip
def test_a_value_is_set_and_the_rest_stays(keys: Any, value: object, gone: list[str], come: list[str]) -> None:
    changed = text()
    changed.set(keys, value)
    assert lines_changed(changed.text) == (gone, come)
    assert changed.get(*keys) == value


def test_a_new_key_stands_where_it_belongs() -> None:
    changed = text()
    changed.set(("order",), "name")
    assert changed.text.splitlines()[:3] == ["# head", "name: x   # the name", "order: name"]


@pytest.mark.parametrize(
    ("keys", "gone", "come"),
    [
        (("nodes", "a"), ["  a: {address: 10.0.0.1}   # first"], []),
        (("nodes", "b", "gpus"), ["    gpus: [0, 1]  # two"], []),
        (("rendezvous", "master"), ["rendezvous: {master: a, port: 29500}  # where"], ["rendezvous: {port: 29500}  # where"]),
        (("rendezvous", "port"), ["rendezvous: {master: a, port: 29500}  # where"], ["rendezvous: {master: a}  # where"]),
        (("nodes", "q"), [], []),
    ],
)  # fmt: skip
def test_a_key_is_taken_out_with_its_line(keys: Any, gone: list[str], come: list[str]) -> None:
    changed = text()
    changed.remove(keys)
    assert lines_changed(changed.text) == (gone, come)


def test_of_the_last_key_an_empty_mapping_is_left_that_can_be_filled_again() -> None:
    changed = text()
    for name in list(changed.get("nodes")):
        changed.remove(("nodes", name))
    assert changed.get("nodes") == {}
    changed.set(("nodes", "z"), {"address": "10.0.0.9"})
    assert "  # about a" in changed.text.splitlines()
    assert "  z: {address: 10.0.0.9}" in changed.text.splitlines()


def test_a_range_becomes_its_nodes_and_a_key_another() -> None:
    changed = text()
    changed.replace_entry(("nodes", "c[1-2]"), {"c1": {"address": "10.0.0.3"}, "c2": {"address": "10.0.0.4"}})
    changed.rename(("nodes", "a"), "first")
    assert list(changed.get("nodes")) == ["first", "b", "c1", "c2"]
    with pytest.raises(Uneditable, match="already"):
        changed.rename(("nodes", "b"), "c1")


@pytest.mark.parametrize(
    ("data", "keys", "value"),
    [
        ("a: &x {p: 1}\nb: *x\n", ("b", "p"), 2),
        ("base: &x {p: 1}\nb: {<<: *x, q: 1}\n", ("b", "p"), 2),
    ],
)
def test_what_stands_in_several_places_is_refused_and_nothing_changes(data: str, keys: Any, value: object) -> None:
    changed = text(data)
    with pytest.raises(Uneditable):
        changed.set(keys, value)
    assert changed.text == data


@pytest.mark.parametrize("data", ["", "a: [", "- 1\n", "a: 1\n---\nb: 2\n"])
def test_what_is_no_mapping_is_refused(data: str) -> None:
    with pytest.raises(Uneditable):
        text(data)


def test_line_ends_of_windows_stay() -> None:
    changed = text(FILE.replace("\n", "\r\n"))
    changed.set(("nodes", "d"), {"gpus": 1})
    assert changed.text.count("\n") == changed.text.count("\r\n") == FILE.count("\n") + 1


_WORDS = st.text(st.sampled_from("ab1 #:-'\"{}[],&*!|>%@`é"), min_size=1, max_size=6)
_VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), _WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_WORDS, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(_WORDS, _VALUES, min_size=1, max_size=4), _WORDS, _VALUES, st.booleans())
@examples(300)
def test_whatever_is_set_is_there_and_nothing_else_changed(
    data: dict[str, Any], key: str, value: Any, block: bool
) -> None:
    before = (
        "".join(f"{flow_yaml(name)}: {flow_yaml(inner)}\n" for name, inner in data.items())
        if block
        else flow_yaml(data)
    )
    changed = Text(before, "group.yml")
    changed.set((key,), value)
    changed.set(("new", "inner"), value)
    changed.remove((next(iter(data)),))
    found: Any = parse_document(changed.text, "group.yml").data
    expected = {**data, key: value, "new": {"inner": value}}
    if next(iter(data)) != "new":
        del expected[next(iter(data))]
        assert found == expected
