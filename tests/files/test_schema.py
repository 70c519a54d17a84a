"""The schemas: complete for editors, understood by the quick judge, and of one mind with jsonschema."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from runbook.files import schema as subject
from runbook.files.schema import compile_schema, load_schema, validate_document
from runbook.files.yaml_document import parse_document
from runbook.model.inventory import MAX_GPUS_PER_NODE

KINDS = ("inventory", "playbook")


def properties(part: Any, at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(part, list):
        for inner in part:
            yield from properties(inner, at)
    elif isinstance(part, dict):
        for name, inner in part.get("properties", {}).items():
            yield f"{at}.{name}", inner
        for key, inner in part.items():
            if key not in ("examples", "default"):
                yield from properties(inner, f"{at}.{key}")


def test_the_most_gpus_of_a_node_are_as_many_everywhere() -> None:
    found = [part for name, part in properties(load_schema("inventory")) if name.endswith(".gpus")]
    assert found
    for part in found:
        count, indices = part["anyOf"]
        assert (count["maximum"], indices["items"]["maximum"] + 1) == (MAX_GPUS_PER_NODE, MAX_GPUS_PER_NODE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_one(kind: str) -> None:
    Draft202012Validator.check_schema(dict(load_schema(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_described_and_has_an_example(kind: str) -> None:
    for name, part in properties(load_schema(kind)):
        assert part.get("description", "").endswith("."), name
        assert part.get("examples"), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_and_default_is_valid(kind: str) -> None:
    root = dict(load_schema(kind))
    for name, part in properties(root):
        validator = Draft202012Validator({**part, "$defs": root["$defs"]})
        for example in [*part["examples"], *([part["default"]] if "default" in part else [])]:
            assert validator.is_valid(example), (name, example)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_keys_are_refused_everywhere_but_where_names_are_free(kind: str) -> None:
    def objects(part: Any, at: str = "") -> Iterator[tuple[str, Any]]:
        if isinstance(part, dict):
            if "properties" in part and "type" in part:
                yield at, part
            for key, inner in part.items():
                yield from objects(inner, f"{at}.{key}")
        elif isinstance(part, list):
            for inner in part:
                yield from objects(inner, at)

    found = dict(objects(load_schema(kind)))
    assert found
    assert [at for at, part in found.items() if part.get("additionalProperties") is not False] == []


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "ssh", "sh", "10s", "strict", "A B", "-x", "eth0"])
)
NAMES = st.sampled_from(
    [
        *load_schema("inventory")["$defs"]["node"]["properties"],
        *load_schema("inventory")["$defs"]["ssh"]["properties"],
        "A",
        "a-b",
        "1x",
    ]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
NODE = {**load_schema("inventory")["$defs"]["node"], "$defs": load_schema("inventory")["$defs"]}
SLOW = Draft202012Validator(NODE)
QUICK = compile_schema(NODE, load_schema("inventory"))


@given(st.dictionaries(NAMES, VALUES, max_size=5) | VALUES)
def test_the_quick_judge_agrees_with_jsonschema(value: object) -> None:
    assert QUICK(value) == SLOW.is_valid(value)


@pytest.mark.parametrize("name", list(load_schema("inventory")["$defs"]["node"]["properties"]))
@given(value=VALUES)
def test_the_quick_judge_agrees_on_every_key(name: str, value: object) -> None:
    assert QUICK({name: value}) == SLOW.is_valid({name: value})


STAGE_KEYS = st.sampled_from([*load_schema("playbook")["$defs"]["stage"]["properties"], "checks"])
PLAYBOOK = Draft202012Validator(dict(load_schema("playbook")))
QUICK_PLAYBOOK = compile_schema(load_schema("playbook"), load_schema("playbook"))


@given(st.lists(st.dictionaries(STAGE_KEYS, VALUES, max_size=3) | VALUES, max_size=3))
def test_the_quick_judge_agrees_on_stages(stages: list[object]) -> None:
    assert QUICK_PLAYBOOK({"stages": stages}) == PLAYBOOK.is_valid({"stages": stages})


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_file_does_not_wait_for_jsonschema(kind: str) -> None:
    text = {"inventory": "nodes: {a: }", "playbook": "stages: [{check: ping}]"}[kind]
    program = (
        "import sys; from runbook.files.yaml_document import parse_document; from runbook.files.schema import validate_document\n"
        f"assert not validate_document(parse_document({text!r}, 'x'), {kind!r}).problems; print('jsonschema' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_the_quick_judge_refuses_a_keyword_it_does_not_know() -> None:
    for part in ({"format": "ipv4"}, {"$ref": "other.json"}):
        with pytest.raises(ValueError, match="unsupported"):
            compile_schema(part, {})


def test_no_document_at_all() -> None:
    with pytest.raises(TypeError):
        validate_document(parse_document("- a", "x.yml"), "inventory")


def test_very_many_wrong_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_NODES_EXPLAINED", 3)
    text = "nodes:\n" + "".join(f"  n{i}: {{gpu: 1}}\n" for i in range(10))
    problems = validate_document(parse_document(text, "x.yml"), "inventory").problems
    assert [problem.id for problem in problems] == [*["inventory.unknown-key"] * 3, "inventory.more-problems"]
    assert problems[-1].message == "7 more nodes are wrong as well; mend these first"


def test_what_is_wrong_is_left_out_and_the_rest_kept() -> None:
    text = "name: 5\nnodes:\n  a: {gpu: 1, gpus: [0, x], address: h}\n  b: {}\nenv: {A: 1, B-C: 2}\n"
    document = parse_document(text, "x.yml")
    assert validate_document(document, "inventory").data == {
        "nodes": {"a": {"gpus": [0, None], "address": "h"}, "b": {}},
        "env": {"A": 1},
    }
    assert isinstance(document.data, dict)
    assert document.data["name"] == 5
