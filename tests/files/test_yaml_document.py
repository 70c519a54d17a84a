"""YAML with places: types nobody can mistake, spans that point, and no input that ends in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runbook.files import yaml_document as subject
from runbook.files.scalars import plain_scalar
from runbook.files.yaml_document import KeyPath, parse_document, read_document


def data(text: str) -> Any:
    document = parse_document(text, "x.yml")
    assert document.problems == ()
    return document.data


def ids(text: str) -> list[str]:
    return [problem.id for problem in parse_document(text, "x.yml").problems]


@pytest.mark.parametrize(
    "text",
    [
        "NO",
        "yes",
        "on",
        "Off",
        "True",
        "FALSE",
        "22:22",
        "0644",
        "0x1F",
        "0o17",
        "1_000",
        "2024-01-02",
        "1e5",
        ".5",
        "+1",
        "-a",
        "-0644",
        ".inf",
        ".nan",
        "Null",
        "NULL",
        "1.",
        "01.5",
        "1.0e999",
        "9" * 5000,
        "12:30:45",
        "١٢",
    ],
)
def test_what_yaml_guesses_at_stays_text(text: str) -> None:
    assert data(f"k: {text}") == {"k": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-7", -7),
        ("29500", 29500),
        ("1.50", 1.5),
        ("-0.5", -0.5),
        ("2.5e3", 2500.0),
        ("~", None),
        ("null", None),
        ("", None),
    ],
)
def test_what_nobody_can_mistake_has_a_type(text: str, value: object) -> None:
    found = data(f"k: {text}\n")["k"]
    assert found == value
    assert type(found) is type(value)


def test_quotes_make_text() -> None:
    assert data("{a: 'true', b: \"1\", c: '', d: !!str 5}") == {"a": "true", "b": "1", "c": "", "d": "5"}


@pytest.mark.parametrize(
    ("text", "kept", "quoted"),
    [
        ("{A: 0,1,2}", {"A": 0}, 'A: "0,1,2"'),
        ("{a: 0,1,2}", {"a": 0}, 'a: "0,1,2"`, or write a list: `[0, 1, 2]'),
        ("{a: eth0, eth1 , b: 1}", {"a": "eth0", "b": 1}, 'a: "eth0,eth1"'),
        ('{a: "x","y"}', {"a": "x"}, 'a: "x,y"'),
        ("{password: x,y}", {"password": "x"}, 'password: "…"'),
    ],
)
def test_what_a_comma_cuts_off_is_one_problem_and_no_key(text: str, kept: object, quoted: str) -> None:
    document = parse_document(f"k: {text}\n", "x.yml")
    (problem,) = document.problems
    assert problem.id == "yaml.comma"
    assert f"quote it as a whole: `{quoted}`" in (problem.help or "")
    assert document.data == {"k": kept}


@pytest.mark.parametrize("text", ["{a, b}", "{a: , b: }", "{a: {}, b}", "{a: x, b: }", "{a: [1], b}", "{a: '', b}"])
def test_a_key_without_a_value_is_one(text: str) -> None:
    assert set(data(f"k: {text}\n")["k"]) == {"a", "b"}


def test_keys_are_always_text() -> None:
    assert data("{1: a, true: b, 0644: c, on: d}") == {"1": "a", "true": "b", "0644": "c", "on": "d"}


def test_the_typed_text_of_a_scalar_is_kept_where_its_value_differs() -> None:
    document = parse_document("{a: 1.50, b: true, c: 0644, d: [7]}", "x.yml")
    assert dict(document.texts) == {("a",): "1.50", ("b",): "true", ("d", 0): "7"}


SPANS = """\
name: lab
nodes:
  ä中a: {gpus: [0, 12]}   # wide characters before what is asked for
  "b c":
    env:
      X: "long value"
empty:
"""


@pytest.mark.parametrize(
    ("keys", "pointed_at"),
    [
        (("name",), "lab"),
        (("nodes", "ä中a", "gpus"), "[0, 12]"),
        (("nodes", "ä中a", "gpus", 1), "12"),
        (("nodes", "b c", "env", "X"), '"long value"'),
        (("nodes", "b c", "env"), 'X: "long value"'),
        (("empty",), "empty"),
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, subject._LOADER])
def test_a_span_points_at_the_value(
    keys: KeyPath, pointed_at: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_LOADER", loader)
    document = parse_document(SPANS, "x.yml")
    span = document.spans[keys]
    assert document.lines[span.line - 1][span.column - 1 :][: span.length] == pointed_at


def test_a_key_span_points_at_the_key() -> None:
    document = parse_document(SPANS, "x.yml")
    span = document.key_spans[("nodes", "b c")]
    assert (span.line, span.column, span.length) == (4, 3, 5)
    assert str(document.key_span("nodes", "ä中a", "gpus")) == "x.yml:3:9"


def test_a_missing_place_gives_the_nearest_around_it() -> None:
    document = parse_document(SPANS, "x.yml")
    assert document.span("nodes", "b c", "nothing", "here") == document.spans[("nodes", "b c")]


def test_aliases_and_merge_keys() -> None:
    text = """\
    base: &base {gpus: 8, env: {A: 1}}
    more: &more {gpus: 4, shell: sh}
    a: *base
    b: {<<: *base, gpus: 2}
    c: {<<: [*base, *more]}
    d: {"<<": 1}
    """
    found = data(text)
    assert found["a"] == {"gpus": 8, "env": {"A": 1}}
    assert found["b"] == {"gpus": 2, "env": {"A": 1}}
    assert found["c"] == {"gpus": 8, "env": {"A": 1}, "shell": "sh"}
    assert found["d"] == {"<<": 1}


def test_a_merged_value_has_its_own_place() -> None:
    document = parse_document("base: &b {gpus: 8}\nnode:\n  <<: *b\n", "x.yml")
    assert str(document.spans[("node", "gpus")]) == "x.yml:1:17"


def test_a_duplicate_key_names_the_first_ones_line() -> None:
    (problem,) = parse_document("a: 1\nb: 2\n'a': 3\n", "x.yml").problems
    assert problem.message == "the key `a` was already given on line 1"
    assert str(problem.span) == "x.yml:3:1"


def test_every_duplicate_is_told_at_once() -> None:
    assert ids("a: 1\na: 2\nb: {c: 1, c: 2}\n") == ["yaml.duplicate-key"] * 2


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)]
    assert ids("\n".join(lines)) == ["yaml.too-many-values"]


def test_a_chain_of_aliases_cannot_nest_deeper_than_brackets() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
    assert ids("\n".join(lines)) == ["yaml.too-deep"]
    merges = ["m0: &m0 {x: 1}", *(f"m{n}: &m{n} {{<<: *m{n - 1}}}" for n in range(1, 3000))]
    assert ids("\n".join(merges)) == ["yaml.too-deep"]


@pytest.mark.parametrize("loader", [yaml.SafeLoader, subject._LOADER])
@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 3000, "- " * 3000, "? " * 3000])
def test_deep_nesting_is_refused(text: str, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_LOADER", loader)
    assert ids(text) == ["yaml.too-deep"]


@pytest.mark.parametrize("loader", [yaml.SafeLoader, subject._LOADER])
@pytest.mark.parametrize(
    ("text", "id", "place"),
    [
        ("a:\n\tb: 1\n", "yaml.tab", "2:1"),
        ("a:\n  b: 1\n \tc: 2\n", "yaml.tab", "3:2"),
        ("- a\n-\tb: 1\n", "yaml.tab", "2:2"),
        ("a:\n  - shell: |\n      x\n      \ty\n   b: 1\n", "yaml.syntax", "5:4"),  # a script may hold tabs
        ('a: "open\n', "yaml.syntax", "1:4"),
        ("a: b: c\n", "yaml.syntax", "1:5"),
        ("a: @b\n", "yaml.syntax", "1:4"),
    ],
)
def test_both_of_pyyamls_parsers_give_the_same_places(
    text: str, id: str, place: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_LOADER", loader)
    (problem,) = parse_document(text, "x.yml").problems
    assert (problem.id, str(problem.span)) == (id, f"x.yml:{place}")
    assert problem.help


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yml").write_bytes("name: a\nx: é\n".encode("latin-1"))
    (tmp_path / "wide.yml").write_bytes("name: a\n".encode("utf-16"))
    (tmp_path / "huge.yml").write_bytes(b"#" * (subject.MAX_BYTES + 1))
    (tmp_path / "empty.yml").write_bytes(b"")
    found = {name: read_document(tmp_path / name).problems[0] for name in ("latin.yml", "wide.yml", "huge.yml")}
    assert found["latin.yml"].id == "file.not-utf8"
    assert found["latin.yml"].span is not None
    assert str(found["latin.yml"].span).endswith("latin.yml:2:4")
    assert found["wide.yml"].id == "file.not-utf8"
    assert found["huge.yml"].id == "file.too-large"
    assert read_document(tmp_path / "empty.yml").problems[0].id == "yaml.empty"
    assert read_document(tmp_path / "nowhere.yml").problems[0].id == "file.missing"
    assert read_document(tmp_path).problems[0].id == "file.directory"
    assert read_document("a\0b").problems[0].id == "file.unreadable"
    assert read_document(tmp_path / "latin.yml" / "x").problems[0].id == "file.unreadable"


@pytest.mark.parametrize("loader", [yaml.SafeLoader, subject._LOADER])
@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('a:\n  b: {x: 1\n  c: {x: 1}\nenv:\n  D: "open\n', [3, 5]),
        ("a: {\n    x: 1\n    y: 2\n  }\nb: c: d\ne:\n  - @f\n  - g\n  - h: @i\n", [3, 5, 7, 9]),
        ("s:\n  - a: 1\n   b: 2\n  - c: [1\n  - d: 2\n", [3, 5]),
        ("a:\n    b: 1\n   c: 2\n  d: 3\n", [3]),  # the last line may be right once the one above is
        ("a:\n\tb: 1\n\tc: 2\nd: 4: 5\n", [2, 4]),
    ],
)
def test_every_mistake_of_syntax_is_told_at_once(
    text: str, places: list[int], loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_LOADER", loader)
    found = parse_document(text, "x.yml").problems
    assert [problem.span.line for problem in found if problem.span] == places


@given(
    st.lists(st.sampled_from(["a: {x: 1, y: [2]}", "b: 'c: d'", "e: |\n  f: {\n  g", "h:\n  - i\n  - j: k"])), st.data()
)
def test_one_mistake_of_syntax_is_told_as_one(sound: list[str], data: st.DataObject) -> None:
    """However sound the lines around it are, none of them is accused."""
    mistake = data.draw(st.sampled_from(["x: y: z", "x: {a: 1", "x: [a\n  b: c", "x: @y", 'x: "a" b']))
    where = data.draw(st.integers(0, len(sound)))
    blocks = [block.replace(block[0], f"{block[0]}{number}", 1) for number, block in enumerate(sound)]
    document = parse_document("\n".join([*blocks[:where], mistake, *blocks[where:]]) + "\n", "x.yml")
    assert len(document.problems) == 1, document.text


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "bom.yml"
    file.write_bytes(b"\xef\xbb\xbfname: a\r\nport: 1\r\n")
    document = read_document(file)
    assert document.data == {"name": "a", "port": 1}
    assert str(document.key_spans[("port",)]).endswith(":2:1")


@given(st.text(alphabet=st.sampled_from("ab01:-[]{},&*!|>'\"%@`#?<~ \t\n\r\x00\x85\ufeff\ud7ff中"), max_size=60))
def test_no_text_raises(text: str) -> None:
    document = parse_document(text, "x.yml")
    assert (document.data is not None) or document.problems
    for span in [*document.spans.values(), *(problem.span for problem in document.problems)]:
        if span is not None:
            assert 1 <= span.line <= len(document.lines)
            assert 1 <= span.column <= len(document.lines[span.line - 1]) + 1


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers() | st.booleans(), st.lists), min_size=1))
def test_what_pyyaml_writes_quoted_is_read_back(value: dict[str, object]) -> None:
    text = yaml.safe_dump(value, allow_unicode=False, default_style='"')
    found = parse_document(text.replace('!!int "', '!!str "').replace('!!bool "', '!!str "'), "x.yml")

    def as_text(inner: object) -> object:
        if isinstance(inner, list):
            return [as_text(one) for one in inner]
        return str(inner).lower() if isinstance(inner, bool) else str(inner)

    assert not found.problems
    assert found.data == {key: as_text(inner) for key, inner in value.items()}


@given(st.text())
def test_a_scalar_is_its_text_or_a_number_that_prints_like_it(text: str) -> None:
    value = plain_scalar(text)
    if isinstance(value, int) and not isinstance(value, bool):
        assert str(value) == text or text == "-0"


def test_anchors_are_listed_with_their_places_and_whether_they_are_used() -> None:
    text = "a: &one 1\nb: &two {x: *one}\nc: {<<: *two}\nd: &three [1]\ne: &two 2\n"
    document = parse_document(text, "f.yml")
    assert [
        (anchor.name, anchor.span.line, anchor.span.column, anchor.span.length, anchor.used)
        for anchor in document.anchors
    ] == [
        ("one", 1, 4, 4, True),
        ("two", 2, 4, 4, True),
        ("three", 4, 4, 6, False),
        ("two", 5, 4, 4, False),
    ]


def test_an_extent_is_exact_where_a_span_shows_one_line_only() -> None:
    document = parse_document("a: |\n  one\n  two\nb: [1,\n 22]\n", "f.yml")
    assert document.extent("a") == ((1, 4), (4, 1))
    assert document.extent("b", 1) == ((5, 2), (5, 4))
    assert document.key_extent("b") == ((4, 1), (4, 2))
    assert document.extent("nothing") is None
    assert parse_document("a: [", "f.yml").extent("a") is None


def test_a_bracket_in_a_plain_value_is_explained() -> None:
    (problem,) = parse_document("n: {address: 10.0.1.[1-4]}\n", "f.yml").problems
    assert problem.help == 'a value that goes on with a bracket needs quotes: "10.0.1.[1-4]"'
    (problem,) = parse_document("a:\n  b: {c: 1\nd: 2\n", "f.yml").problems
    assert problem.help == "the bracket that was opened on line 2 is not closed, or a comma is missing"
