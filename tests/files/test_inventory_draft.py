"""What is written loads as the same: ranges pair names with addresses, and every value comes back as it went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import Draft, NodeDraft, SettingPath, draft_text
from runbook.files.node_sets import expand, folded_names, folded_rows
from runbook.files.scalars import flow_yaml
from runbook.files.yaml_document import parse_document

NAMES = st.from_regex(r"(gn|r[0-2]n|x)[0-9]{1,3}(-ib|a0)?", fullmatch=True)
ADDRESSES = st.from_regex(r"10\.0\.[0-1]\.[1-9][0-9]?", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(NAMES, max_size=30))
def test_ranges_keep_every_name_and_the_order(names: list[str]) -> None:
    assert [name for expression in folded_names(names) for name in expand(expression)] == names


@given(st.lists(st.tuples(NAMES, ADDRESSES), max_size=30))
def test_addresses_stay_with_their_names(rows: list[tuple[str, str]]) -> None:
    found: list[tuple[str, ...]] = []
    for row, count in folded_rows(rows):
        columns = [expand(expression) for expression in row]
        found += zip(*(column if len(column) == count else column * count for column in columns), strict=True)
    assert found == rows


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_any_value_comes_back(values: dict[str, object]) -> None:
    document = parse_document(f"v: {flow_yaml(values)}\n", "x.yml")
    assert document.problems == ()
    assert document.data == {"v": values}


def test_text_that_yaml_1_1_takes_for_something_else_is_quoted() -> None:
    for text in (
        "no",
        "NO",
        "on",
        "0644",
        "22:22",
        "1_000",
        "2026-01-01",
        "null",
        "~",
        "1e3",
        "0o7",
        "0x1F",
        "<<",
        "=",
        "",
    ):
        assert flow_yaml(text) == f'"{text}"'


@given(
    st.lists(st.tuples(NAMES, ADDRESSES), min_size=1, max_size=12, unique_by=(lambda row: row[0], lambda row: row[1])),
    st.data(),
)
def test_a_draft_loads_as_the_same_nodes(rows: list[tuple[str, str]], data: st.DataObject) -> None:
    nodes = []
    for name, address in rows:
        settings: dict[SettingPath, object] = {("address",): address}
        for key, values in (
            (("gpus",), [2, 8]),
            (("ssh", "user"), ["root", "me"]),
            (("vars", "a"), [1, True, "yes"]),
        ):
            value = data.draw(st.sampled_from([None, *values]))
            if value is not None:
                settings[key] = value
        nodes.append(NodeDraft(name, settings, data.draw(st.sampled_from([(), ("a word: about it",)]))))
    names = [name for name, _ in rows]
    members = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    # A group whose nodes share some settings, and whose own say may differ from what won.
    lifted = dict(data.draw(st.sampled_from([node.settings for node in nodes])))
    text = draft_text(Draft("x", tuple(nodes), groups={"some": members}, group_settings={"some": lifted}))
    examined = examine_inventory(parse_document(text, "x.yml"), environ={})
    assert examined.problems == (), text
    assert examined.inventory is not None
    assert [node.name for node in examined.inventory.nodes] == names
    for draft, node in zip(nodes, examined.inventory.nodes, strict=True):
        assert node.address == draft.settings[("address",)]
        assert len(node.gpus) == draft.settings.get(("gpus",), 0)
        assert node.ssh.user == draft.settings.get(("ssh", "user"))
        assert repr(node.vars.get("a")) == repr(draft.settings.get(("vars", "a")))
    assert set(examined.inventory.groups["some"]) == set(members)


def test_a_comment_cannot_become_anything_else() -> None:
    node = NodeDraft("n1", {}, ("a\nb: 1\r\x1b[31m\u2028c",))
    text = draft_text(Draft("x", (node,), header=("h\nnodes: {}",), footer=("f\n",)))
    examined = examine_inventory(parse_document(text, "x.yml"), environ={})
    assert examined.problems == ()
    assert "\x1b" not in text
