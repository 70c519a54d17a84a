"""Says what to write in place of an unknown key: a key of Ansible, ssh or torchrun, a key at the wrong level, a check
by another name.

The words of other programs are in `misplaced_keys.toml`, which is read only when a key is unknown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from runbook.files.shipped_files import load_own_table
from runbook.files.suggestions import did_you_mean, nearest_word, split_joined_key
from runbook.files.yaml_document import KeyPath

MappingPath = tuple[str, ...]


class Advice(NamedTuple):
    """What to write for an unknown key. `key` is the key of the same mapping that was meant; None if there is none."""

    help: str | None
    key: str | None


@cache
def _foreign_words() -> Mapping[str, Mapping[str, MappingPath | str]]:
    """The words of other programs, by the mapping in which they are found (`ssh`, `node`, …). Each word, in lower case
    and without `_` and `-`, has the path of our key, or a help sentence."""
    table = load_own_table("runbook.files", "misplaced_keys.toml")
    places: dict[str, dict[str, MappingPath | str]] = {
        mapping: {
            word: tuple(one["write"].split(".")) if "write" in one else one["says"]
            for one in entries
            for word in one["for"].split()
        }
        for mapping, entries in table.items()
    }
    places["node"] |= {
        word: path if isinstance(path, str) else ("ssh", *path)
        for word, path in places["ssh"].items()
        if word not in places["node"]
    }
    places["ssh"] |= dict.fromkeys(("hostname", "address", "ansiblehost", "ip"), ("host",))
    deeper = {word: ("defaults", *path) for word, path in places["node"].items() if isinstance(path, tuple)}
    sentences = {word: says for word, says in places["node"].items() if isinstance(says, str)}
    places["group"] = {**places["group"], **{word: deeper[word] for word in deeper if word != "host"}, **sentences}
    of_one = {word for word, path in deeper.items() if path[1:] == ("address",)}
    places["inventory"] = {**{word: deeper[word] for word in deeper if word not in of_one}, **places["inventory"]}
    return places


def _foreign_words_at(kind: str, keys: KeyPath) -> Mapping[str, MappingPath | str]:
    """The words of `_foreign_words` for the mapping at `keys`; empty if none are known there."""
    if kind == "playbook":
        mapping = "launch" if keys[2:] == ("launch",) else {0: "playbook", 2: "stage"}.get(len(keys), "")
        return _foreign_words().get(mapping, {}) if keys[:1] in ((), ("stages",)) else {}
    if not keys:
        return _foreign_words()["inventory"]
    if keys[-1] in ("ssh", "rendezvous", "network", "infiniband", "container"):
        return _foreign_words()[str(keys[-1])]
    if keys[0] == "groups" and len(keys) == 2:
        return _foreign_words()["group"]
    if keys == ("defaults",) or (keys[0] == "nodes" and len(keys) == 2) or (keys[0] == "groups" and len(keys) == 3):
        return _foreign_words()["node"]
    return {}


def advise_key(
    name: str,
    value: object,
    keys: KeyPath,
    kind: str,
    rule: Mapping[str, Any],
    root: Mapping[str, Any],
    *,
    beside: Collection[str] = (),
) -> Advice:
    """What to write for the unknown key `name` with this value, in the mapping at `keys` that `rule` describes and
    that has the keys `beside`."""
    known = list(rule.get("properties", {}))
    if name[:1].isspace() and name[0] != " ":
        return Advice(f"the blanks before `{name.strip()}` are not plain spaces: retype the indentation", None)
    if keys[:1] in (("nodes",), ("groups",)) and len(keys) == 2 and keys[1] in root["properties"]:
        return Advice(f"`{keys[1]}:` is among the {keys[0]}; the inventory's own belongs at the left margin", None)
    joined = split_joined_key(name)
    if joined is not None:
        key = joined[0]
        meant = key if key in known else advise_key(key, None, keys, kind, rule, root).key
        return Advice(joined[1], meant)
    target = _foreign_words_at(kind, keys).get(_plain_word(name))
    if isinstance(target, str):
        return Advice(target, None)
    if target == ("shell",) and isinstance(value, list):
        target = ("launch", "command")
    if target is None:
        below = [path for path in _paths_below(rule, root) if path[-1] == name or path == tuple(name.split("."))]
        below += [path for path in _paths_below(rule, root) if "_".join(path) == name]
        target = min(below, key=len, default=None)
    near = nearest_word(name, known)
    of_stage = kind == "playbook" and len(keys) == 2
    kinds = {"check", "shell", "launch"}.intersection(beside) if of_stage else set()
    if target is not None and len(target) > 1 and target[0] == "launch" and kinds and "launch" not in kinds:
        return Advice(f"only a launch has that, and this is a `{min(kinds)}` stage: remove it", None)
    if target is not None and target != (near,):
        verb = "it belongs inside:" if kind == "playbook" and len(target) > 1 else "write"
        return Advice(f"{verb} `{one_line_setting(target, value)}`", target[0])
    if near is not None:
        return Advice(f"did you mean `{near}`?", near)
    above = _too_deep_help(name, keys, root)
    if above is not None:
        return Advice(above, None)
    if name.startswith("ansible_"):
        return Advice("an Ansible setting with no place here; variables of your own belong under `vars:`", None)
    if "check" in kinds:
        return Advice(f"an argument of a check belongs under `{one_line_setting(('with', name), value)}`", None)
    return Advice(did_you_mean(name, known), None)


def has_known_advice(name: str, keys: KeyPath, kind: str) -> bool:
    """Whether `misplaced_keys.toml` has a sentence for an unknown key of the mapping at `keys`; no more need be said of
    that mapping."""
    return isinstance(_foreign_words_at(kind, keys).get(_plain_word(name)), str)


def checks_with_foreign_names() -> set[str]:
    """The ids of the checks that words of other programs stand for."""
    return {path[0] for path in _foreign_words()["check"].values() if isinstance(path, tuple)}


def advise_check(name: str, known: Sequence[str]) -> str | None:
    """The help for the id of a check that does not exist."""
    meant = _foreign_words()["check"].get(_plain_word(name))
    if isinstance(meant, str):
        return meant
    return did_you_mean(name, known) if meant is None else f"write `{meant[0]}`"


def translated_node_settings(settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings of a node with keys of other programs replaced by ours; a key without a known translation stays."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        path = _foreign_words()["node"].get(_plain_word(name))
        key, *deeper = path if isinstance(path, tuple) else (name,)
        within = found.setdefault(key, {}) if deeper else found
        if isinstance(within, dict):
            within[deeper[0] if deeper else key] = value
    return found


def _plain_word(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def one_line_setting(path: Sequence[str], value: object) -> str:
    """The path and its value as one line, `ssh: {user: ubuntu}`; `…` stands for a value that is not a short scalar."""
    shown = "…"
    if isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, int | float | str) and value != "" and len(str(value)) <= 40:
        shown = str(value)
    for key in reversed(path[1:]):
        shown = f"{{{key}: {shown}}}"
    return f"{path[0]}: {shown}"


def _paths_below(rule: Mapping[str, Any], root: Mapping[str, Any], before: MappingPath = ()) -> Iterator[MappingPath]:
    """The paths of the keys inside the known keys of a mapping, up to three keys long; mappings whose keys are names
    that the user chose are left out."""
    for name, inner in _rule_properties(rule, root).items():
        if before:
            yield (*before, name)
        if len(before) < 2:
            yield from _paths_below(inner, root, (*before, name))


def _too_deep_help(name: str, keys: KeyPath, root: Mapping[str, Any]) -> str | None:
    """The help for a key that was put too deep: where it belongs. None if no level above has such a key."""
    rules = [root]
    for key in keys:
        rules.append(_inner_rule(rules[-1], key, root))
    for depth in range(len(keys) - 1, -1, -1):
        candidates = [(one,) for one in _rule_properties(rules[depth], root)] + list(_paths_below(rules[depth], root))
        path = min((one for one in candidates if one[-1] == name), key=len, default=None)
        if path is not None:
            where = "at the left margin" if depth == 0 else f"beside `{keys[depth]}`"
            return f"it belongs {where}: `{one_line_setting(path, None)}`"
    return None


def _inner_rule(rule: Mapping[str, Any], key: str | int, root: Mapping[str, Any]) -> Mapping[str, Any]:
    rule = resolve_ref(rule, root)
    found = rule.get("items", {}) if isinstance(key, int) else rule.get("properties", {}).get(key)
    if found is None:
        found = rule.get("additionalProperties", {})
    return resolve_ref(found, root) if isinstance(found, Mapping) else {}


def _rule_properties(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = resolve_ref(rule, root).get("properties", {})
    return found


def resolve_ref(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the schema that `rule`'s `$ref` names, with the keywords beside the `$ref`; `rule` if it has none."""
    while "$ref" in rule:
        rule = {**root["$defs"][rule["$ref"].rpartition("/")[2]], **{k: v for k, v in rule.items() if k != "$ref"}}
    return rule
