"""What people change about a group in the form, as changes to its file. Everything else in the file stays as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import RANGED_SETTINGS
from runbook.files.node_sets import count_names, expand, has_range, split_names
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import Document, KeyPath, parse_document
from runbook.files.yaml_edit import Text, Uneditable
from runbook.serve.group_preview import PLACEHOLDER_ENVIRONMENT

TOP_KEY_ORDER = ("name", "order", "rendezvous", "network", "infiniband", "env", "defaults", "nodes", "groups", "launch")
"""The order of the keys at the top of the file, by which a new key gets its place."""

NEW_GROUP_TEMPLATE = """\
# yaml-language-server: $schema=../schemas/inventory.schema.json
name: {name}
order: alphabet
rendezvous: {{port: 29500}}
nodes:
  {{}}
launch:
  command: [python, train.py]
"""

_FIELD_KEYS: Mapping[str, KeyPath] = {
    **{name: ("rendezvous", name) for name in ("master", "address", "port", "backend")},
    "order": ("order",),
    **{name: ("network", name) for name in ("interface", "ports")},
    **{name: ("defaults", name) for name in ("gpus", "processes", "python", "activate")},
    **{name: ("launch", name) for name in ("launcher", "workdir", "retries", "spares", "grace", "detach")},
}
"""The fields of the form that stand for one value of the file, and the keys of that value."""
QUOTED_VALUE_CHARACTERS = 40  # how much of a wrong value an error quotes
_NUMBER_KEYS = ("port", "processes", "retries")
_MULTILINE_FIELDS = ("env", "launch_env")
_ENV_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
_ENV_REFERENCE = re.compile(r"\{\s*env:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
_CONNECTION_KEYS = ("address", "connection", "ssh", "slurm", "kubernetes", "container", "inside")
_KEYS_MOVED_WITH_NODE = frozenset(
    (*_CONNECTION_KEYS, "python", "shell", "activate", "workdir", "gpus", "processes", "rack", "leaf")
)
"""The keys that a node takes with it into another group, wherever in the file they were set. Any other key, such as
`env`, it takes along only if it is set at the node itself."""


class WrongField(ValueError):
    """A field of the form holds an invalid value; `field` is its name."""

    def __init__(self, field: str, says: str) -> None:
        super().__init__(says)
        self.field = field


def open_group_text(name: str, text: str) -> Text:
    """A group's text, ready to be changed. Raises Uneditable."""
    return Text(text, f"{name}.yml", TOP_KEY_ORDER)


def form_fields(text: Text) -> dict[str, str]:
    """The fields of the form as the file has them; a field that the file does not set is empty."""
    found = {field: _form_value_text(text.get(*keys)) for field, keys in _FIELD_KEYS.items()}
    command = text.get("launch", "command")
    found["command"] = shlex.join(map(str, command)) if isinstance(command, list) else ""
    found["env"] = _env_text(text.get("env"))
    found["launch_env"] = _env_text(text.get("launch", "env"))
    addresses: dict[str, dict[str, Any]] = {}
    for name, (entry, settings) in node_entries(text).items():
        for key in ("gpus", "processes"):
            found[f"node.{name}.{key}"] = _form_value_text(settings.get(key)) if entry else ""
        if entry not in addresses:
            addresses[entry] = _addresses_by_node(entry, settings.get("address"))
        found[f"node.{name}.address"] = _form_value_text(addresses[entry][name])
    return found


def _addresses_by_node(entry: str, address: Any) -> dict[str, Any]:
    """The address of each node of an entry. Both the entry and its address may be ranges."""
    names = expand(entry)
    if isinstance(address, str) and has_range(address) and count_names(address) == len(names):
        return dict(zip(names, expand(address), strict=True))
    return dict.fromkeys(names, address)


def set_fields(text: Text, fields: Mapping[str, str]) -> list[str]:
    """Write the fields that differ from the file into it; returns their names, such as `port` and `env`. Raises
    WrongField, Uneditable."""
    changed = differing_fields(text, fields)
    for field, value in changed.items():
        if field in _MULTILINE_FIELDS:
            _set_env(text, ("env",) if field == "env" else ("launch", "env"), value, field)
        elif field == "command":
            _set_command(text, value)
        elif field.startswith("node."):
            name, _, key = field.removeprefix("node.").rpartition(".")
            _set_node_key(text, name, key, _file_value(field, key, value))
        else:
            _set_or_remove(text, _FIELD_KEYS[field], _file_value(field, field, value))
    return list(changed)


def differing_fields(text: Text, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that differ from the file, in the order of the form. Raises WrongField for an unknown field."""
    before = form_fields(text)
    if unknown := next((field for field in fields if field not in before), None):
        raise WrongField(unknown[:80], "there is no such field")
    return {
        field: _normalized_text(fields[field])
        for field, value in before.items()
        if field in fields and _text_as_sent(field, fields[field]) != _text_as_sent(field, value)
    }


def node_entries(text: Text) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every node by name, in the order of the file: its key below `nodes:`, which may be a range, and the settings
    there."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    entries = text.get("nodes")
    for key, settings in entries.items() if isinstance(entries, dict) else ():
        try:
            names = expand(str(key))
        except ValueError:
            continue
        for name in names:
            found.setdefault(name, (str(key), settings if isinstance(settings, dict) else {}))
    return found


def remove_node(text: Text, name: str) -> None:
    """Take a node out of the group, and its name out of `rendezvous`, `groups` and `spares`. Raises Uneditable."""
    if name not in node_entries(text):
        raise Uneditable(f"there is no node `{name}` in this group")
    _split_node_entry(text, name)
    text.remove(("nodes", name))
    if text.get("rendezvous", "master") == name:
        _set_or_remove(text, ("rendezvous", "master"), None)
    groups = text.get("groups")
    for group, body in list(groups.items()) if isinstance(groups, dict) else ():
        members = body.get("nodes") if isinstance(body, dict) else None
        if members == name or members == [name]:
            _set_or_remove(text, ("groups", group), None)
        elif isinstance(members, list) and name in members:
            text.set(("groups", group, "nodes"), [member for member in members if member != name])
    spares = text.get("launch", "spares")
    if isinstance(spares, list) and name in spares:
        _set_or_remove(text, ("launch", "spares"), [spare for spare in spares if spare != name] or None)


def shift_node(text: Text, name: str, by: int) -> None:
    """Move a node one place up (-1) or down (1) in the file. Raises Uneditable; also when ranks do not follow the order
    of the file."""
    if (text.get("order") or "inventory") != "inventory":
        raise Uneditable("the nodes are ordered by their names: choose the order of the file first")
    names = list(node_entries(text))
    if name not in names:
        raise Uneditable(f"there is no node `{name}` in this group")
    at = names.index(name) + by
    if not 0 <= at < len(names):
        return
    for one in (name, names[at]):
        _split_node_entry(text, one)
    text.exchange(("nodes", name), names[at])


def add_node(text: Text, name: str, settings: Mapping[str, object]) -> None:
    """Add a node at the end, without the settings that the group's `defaults` give it anyway. Raises Uneditable."""
    if name in node_entries(text):
        raise Uneditable(f"the node `{name}` is in this group already")
    defaults = text.get("defaults")
    own = {
        key: value for key, value in settings.items() if not isinstance(defaults, dict) or defaults.get(key) != value
    }
    text.set(("nodes", name), own)


def settings_of_nodes(text: Text, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings that each of these nodes takes with it into another group. Raises Uneditable."""
    nodes = node_entries(text)
    if unknown := next((name for name in names if name not in nodes), None):
        raise Uneditable(f"there is no node `{unknown}` in this group")
    origins = _origins_of_document(
        parse_document(text.text, "group.yml")
    )  # once for all: a file of a thousand nodes takes long
    if origins is None:
        return {name: _expand_entry(*nodes[name])[name] for name in names}
    return {name: _settings_to_take_along(origins, name, nodes[name][0]) for name in names}


def _settings_to_take_along(origins: Origins, name: str, entry: str) -> dict[str, Any]:
    """The settings that a node takes along, by where its values come from."""
    found: dict[str, Any] = {}
    for key in origins.keys(name):
        winner = next((one for one in origins.candidates(name, key) if one.wins), None)
        if winner is None or not (key[0] in _KEYS_MOVED_WITH_NODE or winner.level == "node"):
            continue
        value = _value_for_node(winner.value, key, name, entry)
        if len(key) == 1:
            found[str(key[0])] = value
        else:
            found.setdefault(str(key[0]), {})[key[1]] = value
    return found


def _origins_of_document(document: Document) -> Origins | None:
    """Where each value of a group's file comes from; None if the file is no valid inventory."""
    return examine_inventory(document, environ=PLACEHOLDER_ENVIRONMENT).origins


def _value_for_node(value: Any, key: KeyPath, name: str, entry: str) -> Any:
    """The value of a setting for one node; for a range of addresses, the node's address in it."""
    if key not in RANGED_SETTINGS or not isinstance(value, str) or not has_range(value):
        return value
    return _expanded_addresses(value, entry)[expand(entry).index(name)]


def _expanded_addresses(value: str, entry: str) -> list[str]:
    """The values in a range of addresses, one for each node of an entry. Raises Uneditable if their numbers differ."""
    values = expand(value)
    if len(values) != len(expand(entry)):
        raise Uneditable(f"`{value}` has not as many addresses as `{entry}` has nodes")
    return values


def _split_node_entry(text: Text, name: str) -> None:
    """Give a node an entry of its own, if it stands in a range."""
    entry, settings = node_entries(text)[name]
    if entry != name:
        text.replace_entry(("nodes", entry), _expand_entry(entry, settings))


def _expand_entry(entry: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """An entry with a range of nodes as one entry for each node, by name."""
    names = expand(entry)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in settings.items():
        inner = value if key == "ssh" and isinstance(value, dict) else {"": value}
        for deep, one in inner.items():
            ranged = ((key, deep) if deep else (key,)) in RANGED_SETTINGS and isinstance(one, str) and has_range(one)
            values = _expanded_addresses(one, entry) if ranged else [one] * len(names)
            for name, mine in zip(names, values, strict=True):
                if deep:
                    found[name].setdefault(key, {})[deep] = mine
                else:
                    found[name][key] = mine
    return found


def _set_node_key(text: Text, name: str, key: str, value: object) -> None:
    """Set a key of one node, or remove it for None. Raises Uneditable."""
    if name not in node_entries(text):
        raise Uneditable(f"there is no node `{name}` in this group")
    _split_node_entry(text, name)
    if value is None:
        text.remove(("nodes", name, key))
    else:
        text.set(("nodes", name, key), value)


def _set_or_remove(text: Text, keys: KeyPath, value: object) -> None:
    """Set a value, or remove it for None; the mapping around it is removed as well if nothing is left in it."""
    if value is not None:
        text.set(keys, value)
        return
    text.remove(keys)
    if len(keys) > 1 and text.get(*keys[:-1]) == {}:
        text.remove(keys[:-1])


def _set_command(text: Text, value: str) -> None:
    if not value:
        raise WrongField("command", "a launch needs a command: the program and its arguments")
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise WrongField("command", f"a quote is not closed: {error}") from None
    text.set(("launch", "command"), words)


def _set_env(text: Text, keys: KeyPath, value: str, field: str) -> None:
    """Write an environment, given as lines of NAME=value, into the file. Raises WrongField."""
    wanted: dict[str, object] = {}
    old = text.get(*keys)
    known = old if isinstance(old, dict) else {}
    lines, number = _env_lines(value), 0
    while number < len(lines):
        line, number = lines[number], number + 1
        if not line:
            continue
        match = _ENV_LINE.fullmatch(line)
        if match is None:
            raise WrongField(field, f"line {number} is no variable: write NAME=value, one a line")
        name, given = match[1], match[2].strip()
        if name in wanted:
            raise WrongField(field, f"{name} is there twice")
        shown = _env_lines(_env_text({name: known[name]})) if name in known else []
        if shown and lines[number - 1 : number - 1 + len(shown)] == shown:
            wanted[name] = known[
                name
            ]  # unchanged: lines cannot express every value, such as one with line breaks or blanks at its ends
            number += len(shown) - 1
            continue
        if len(shown) > 1:
            raise WrongField(field, f"{name} has several lines: change it in the text of the file")
        secret = _ENV_REFERENCE.fullmatch(given)
        same = name in known and _env_value_text(known[name]) == given
        wanted[name] = known[name] if same else {"env": secret[1]} if secret else given
    if wanted:
        text.set(keys, wanted)
    elif known:
        _set_or_remove(text, keys, None)


def _env_lines(text: str) -> list[str]:
    """The lines of a text as browsers send them back, without blanks at their ends."""
    return [line.rstrip() for line in re.sub(r"\r\n?", "\n", text).rstrip().split("\n")]


def _env_text(env: Any) -> str:
    """An environment as the form shows it: lines of NAME=value."""
    return "\n".join(f"{name}={_env_value_text(value)}" for name, value in env.items()) if isinstance(env, dict) else ""


def _env_value_text(value: Any) -> str:
    """The value of a variable as the form shows it; `{env: NAME}` for a value from our environment."""
    if isinstance(value, dict) and set(value) == {"env"}:
        return f"{{env: {value['env']}}}"
    return _form_value_text(value)


def _form_value_text(value: Any) -> str:
    """A value of the file as the form shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _normalized_text(value: str) -> str:
    return value.replace("\r\n", "\n").strip()


def _text_as_sent(field: str, value: str) -> str:
    """A value as it comes back from a browser, whose fields of one line hold no line breaks."""
    return _normalized_text(value) if field in _MULTILINE_FIELDS else re.sub(r"[\r\n]", "", value).strip()


def _file_value(field: str, key: str, value: str) -> object:
    """The value for the file that a field's text means; None for an empty text. Raises WrongField."""
    if not value:
        return None
    if "\n" in value:
        raise WrongField(field, "one line is enough here")
    if key == "gpus":
        return _parsed_gpus(field, value)
    if key == "spares":
        whole = re.fullmatch(r"\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\s*", value)  # a list as YAML writes it
        return split_names(whole[1] if whole else value)
    if key == "detach":
        if value not in ("true", "false"):
            raise WrongField(field, "true or false")
        return value == "true"
    if key in _NUMBER_KEYS:
        if not re.fullmatch("[0-9]{1,9}", value):
            raise WrongField(field, f"`{value[:QUOTED_VALUE_CHARACTERS]}` is not a number")
        return int(value)
    return value


def _parsed_gpus(field: str, value: str) -> object:
    """The value of `gpus` that a text means: the number of GPUs (`8`), or the list of their indices (`0, 2`). Raises
    WrongField."""
    parts = re.split(r"[,\s]+", value.strip("[] "))
    if not all(re.fullmatch("[0-9]{1,4}", part) for part in parts):
        raise WrongField(
            field, f"`{value[:QUOTED_VALUE_CHARACTERS]}` is neither how many GPUs nor a list of them: 8, or 0, 1, 3"
        )
    return int(parts[0]) if len(parts) == 1 and "[" not in value else [int(part) for part in parts]
