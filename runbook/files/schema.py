"""Judges a document by its JSON Schema, and explains mistakes in plain English and with places.

A schema becomes a plain yes-or-no function, a hundred times faster than jsonschema. The function finds mistakes, and
jsonschema explains them: so a sound file does not import jsonschema (0.15 s), and of 10,000 nodes only the bad ones go
through it. The function knows the keywords that our schemas use, and refuses any other at once.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import yaml

from runbook.files.misplaced_keys import advise_key, checks_with_foreign_names, has_known_advice, resolve_ref
from runbook.files.scalars import plain_scalar, port_range_message
from runbook.files.shipped_files import shipped_path
from runbook.files.suggestions import did_you_mean, nearest_word, odd_letter_help, split_joined_key
from runbook.files.yaml_document import Document, KeyPath, LineColumn
from runbook.model.errors import Problem, Span
from runbook.model.grouping import values_by_key
from runbook.model.units import name_list_text

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Accepts = Callable[[object], bool]

_ANNOTATION_KEYWORDS = {"title", "description", "examples", "default", "$schema", "$id", "$defs"}  # they judge nothing
_TYPES: dict[str, Accepts] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
}


def compile_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Accepts:
    """A function that says whether a value is valid by `schema`; `root` is where `#/$defs/…` are looked up."""
    return _Compiler(root).compile(schema)


class _Compiler:
    """Compiles parts of a schema into functions that say whether a value is valid."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def compile(self, schema: Mapping[str, Any] | bool) -> Accepts:
        if isinstance(schema, bool):
            return lambda _value: schema
        tests: list[Accepts] = []
        known = {"properties", "additionalProperties", "propertyNames", "items"}
        for keyword, wanted in schema.items():
            if keyword in _ANNOTATION_KEYWORDS or keyword in known:
                continue
            tests.append(self._keyword(keyword, wanted))
        if "properties" in schema or "additionalProperties" in schema:
            tests.append(self._properties(schema))
        if "propertyNames" in schema:
            name_ok = self.compile(schema["propertyNames"])
            tests.append(lambda value: not isinstance(value, dict) or all(map(name_ok, value)))
        if "items" in schema:
            item_ok = self.compile(schema["items"])
            tests.append(lambda value: not isinstance(value, list) or all(map(item_ok, value)))
        if len(tests) == 1:
            return tests[0]
        return lambda value: all(test(value) for test in tests)

    def _keyword(self, keyword: str, wanted: Any) -> Accepts:
        number = _TYPES["number"]
        match keyword:
            case "$ref":
                prefix = "#/$defs/"
                if not wanted.startswith(prefix):
                    raise ValueError(f"unsupported $ref {wanted}")
                return self.compile(self._root["$defs"][wanted[len(prefix) :]])
            case "type":
                kinds = [_TYPES[name] for name in ([wanted] if isinstance(wanted, str) else wanted)]
                return kinds[0] if len(kinds) == 1 else lambda value: any(kind(value) for kind in kinds)
            case "enum":
                return lambda value: any(value == one and isinstance(value, type(one)) for one in wanted)
            case "anyOf":
                branches = [self.compile(branch) for branch in wanted]
                return lambda value: any(branch(value) for branch in branches)
            case "oneOf":
                choices = [self.compile(choice) for choice in wanted]
                return lambda value: sum(choice(value) for choice in choices) == 1
            case "pattern":
                search = re.compile(wanted).search
                return lambda value: not isinstance(value, str) or search(value) is not None
            case "minLength":
                return lambda value: not isinstance(value, str) or len(value) >= wanted
            case "minItems":
                return lambda value: not isinstance(value, list) or len(value) >= wanted
            case "minProperties":
                return lambda value: not isinstance(value, dict) or len(value) >= wanted
            case "minimum":
                return lambda value: not number(value) or value >= wanted
            case "exclusiveMinimum":
                return lambda value: not number(value) or value > wanted
            case "maximum":
                return lambda value: not number(value) or value <= wanted
            case "required":
                return lambda value: not isinstance(value, dict) or all(name in value for name in wanted)
        raise ValueError(f"unsupported keyword {keyword}")

    def _properties(self, schema: Mapping[str, Any]) -> Accepts:
        named = {name: self.compile(inner) for name, inner in schema.get("properties", {}).items()}
        other = self.compile(schema.get("additionalProperties", True))

        def test(value: object) -> bool:
            if not isinstance(value, dict):
                return True
            return all(named.get(name, other)(inner) for name, inner in value.items())

        return test


_LIST = re.compile(r"\A\s*(?:\[\s*)?[0-9]{1,5}(\s*,\s*[0-9]{1,5})+\s*(?:\]\s*)?")
_GROUPED_INTEGER = re.compile(r"(0o)?([0-9]{1,3}(?:[_,][0-9]{3})+|[0-9]{1,9})", re.ASCII)
_NUMBER_WITH_UNIT = re.compile(r"\A([0-9]+(?:\.[0-9]+)?)\s*[A-Za-z/][A-Za-z/ ]*")
MOST_NODES_EXPLAINED = 500  # wrong nodes, or groups; more have the same mistake, and are only counted
MAX_EXPLAINED_VALUES = 1000  # wrong values; if there are more, one problem says so, and the data is left empty


@dataclass(frozen=True, slots=True)
class Validated:
    """A judged document. `data` is the document's data without its mistakes: unknown keys and bad values are left out,
    bad items of lists are None. So later checks can judge the rest, and the user gets all problems at once. `wrong`
    has the keys of what was left out.
    """

    problems: list[Problem]
    data: dict[str, Any]
    wrong: set[KeyPath] = field(default_factory=set)


def validate_document(document: Document, kind: str) -> Validated:
    """Judges a document by `schemas/{kind}.schema.json`. Raises TypeError if its data is no mapping."""
    if not isinstance(document.data, dict):
        raise TypeError("judge() wants a document that holds a mapping")
    if _compiled_schema(kind)(document.data):
        return Validated([], document.data)
    problems: list[Problem] = []
    wrong: set[KeyPath] = set()
    few, left_out = _entries_to_explain(document.data, kind)
    wrong.update((block, name) for block, names in left_out.items() for name in names)
    templates = _unquoted_templates(document)
    repetitions = _Repetitions()
    explained = 0
    for error in _schema_validator(kind).iter_errors(few):
        if explained >= MAX_EXPLAINED_VALUES:
            message = "more values are wrong as well; mend these first"
            problems.append(Problem(f"{kind}.more-problems", message, document.span()))
            return Validated(problems, {}, {*wrong, *((key,) for key in document.data)})
        for problem, keys in islice(_explain_error(error, document, kind), MAX_EXPLAINED_VALUES - explained):
            wrong.add(keys)
            explained += 1
            if problem is not None and not _is_from_template(document, keys, templates) and repetitions.is_new(problem):
                problems.append(problem)
        if explained >= MAX_EXPLAINED_VALUES:
            wrong.update(_error_places(error))
    for block, names in left_out.items():
        message = f"{len(names):,} more {block} are wrong as well; mend these first"
        problems.append(Problem(f"{kind}.more-problems", message, document.span(block)))
    return Validated(problems, _without_wrong_values(document.data, wrong), wrong)


@cache
def load_schema(kind: str) -> Mapping[str, Any]:
    """The parsed schema; `kind` is `inventory` or `playbook`."""
    parsed: dict[str, Any] = json.loads(shipped_path("schemas", f"{kind}.schema.json").read_text(encoding="utf-8"))
    return parsed


@cache
def _compiled_schema(kind: str) -> Accepts:
    return compile_schema(load_schema(kind), load_schema(kind))


@cache
def _schema_validator(kind: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load_schema(kind))


@cache
def _entry_validator(block: str) -> Callable[[str, object], bool]:
    """A function that says whether an entry of `block`, `nodes` or `groups`, is sound, given its name and value."""
    root = load_schema("inventory")
    rules = root["properties"][block]
    name_ok = compile_schema(rules.get("propertyNames", {}), root)
    value_ok = compile_schema(rules["additionalProperties"], root)
    return lambda name, value: value_ok(value) and name_ok(name)


def _entries_to_explain(data: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The data with only those nodes and groups that need an explanation (of each block at least one), and by block the
    names of further ones that are wrong."""
    left_out: dict[str, list[str]] = {}
    for block in ("nodes", "groups") if kind == "inventory" else ():
        entries = data.get(block)
        if not isinstance(entries, dict) or not entries:
            continue
        bad = [name for name, value in entries.items() if not _entry_validator(block)(name, value)]
        kept = bad[:MOST_NODES_EXPLAINED] or [next(iter(entries))]
        data = {**data, block: {name: entries[name] for name in kept}}
        if len(bad) > MOST_NODES_EXPLAINED:
            left_out[block] = bad[MOST_NODES_EXPLAINED:]
    return data, left_out


class _Repetitions:
    """Finds problems that only repeat another: in `DEBUG:INFO` one missing space makes the name and the value wrong."""

    def __init__(self) -> None:
        self._problems: set[Problem] = set()
        self._helps: set[tuple[Span | None, str]] = set()

    def is_new(self, problem: Problem) -> bool:
        helped = problem.help is not None and (problem.span, problem.help) in self._helps
        if helped or problem in self._problems:
            return False
        self._problems.add(problem)
        if problem.help is not None:
            self._helps.add((problem.span, problem.help))
        return True


def _error_parts(error: ValidationError) -> tuple[KeyPath, Any, Any, Any]:
    """The keys of a wrong value, the value, the part of the schema that it breaks, and what that part wants."""
    return tuple(error.absolute_path), error.instance, error.schema, error.validator_value


def _error_places(error: ValidationError) -> Iterator[KeyPath]:
    """The keys of the values to leave out of the data: those of `_explain_error`, without the cost of its
    explanations."""
    keys, instance, rule, _ = _error_parts(error)
    if error.validator == "additionalProperties":
        yield from ((*keys, name) for name in instance if name not in rule.get("properties", {}))
    elif "propertyNames" in error.absolute_schema_path:
        yield (*keys, str(error.instance))
    else:
        yield keys


def _unquoted_templates(document: Document) -> set[LineColumn]:
    """The places where values begin that YAML made from an unquoted `{{ template }}`."""
    spans = (problem.span for problem in document.problems if problem.id == "yaml.unquoted-template")
    return {(span.line, span.column - 1) for span in spans if span is not None}  # it is the second of the two braces


def _is_from_template(document: Document, keys: KeyPath, templates: set[LineColumn]) -> bool:
    """Whether the value at `keys` came from an unquoted template, for which there is a problem already."""
    extent = document.extent(*keys) if templates else None
    return extent is not None and extent[0] in templates


def _explain_error(error: ValidationError, document: Document, kind: str) -> Iterator[tuple[Problem | None, KeyPath]]:
    """Pairs of a problem and the keys of the value to leave out of the data. The problem is None where the problem of a
    misspelt key says the same."""
    keys, instance, rule, wanted = _error_parts(error)
    here = document.span(*keys)
    match error.validator:
        case "additionalProperties":
            yield from _unknown_key_problems(error, document, kind)
        case "required":
            yield from _missing_key_problems(error, document, kind)
        case "oneOf" if not isinstance(instance, dict):
            return  # the wrong type, which jsonschema reports as an error of its own
        case "oneOf":
            yield _stage_kind_problem(error, document, kind), keys
        case "anyOf":
            inner = _fitting_branch_errors(error)
            if inner:
                for one in inner:
                    yield from _explain_error(one, document, kind)
            else:
                yield _wrong_value_problem(error, document, kind), keys
        case "enum":
            help = did_you_mean(str(instance), [str(one) for one in wanted])
            message = f"{_value_label(keys)} should be {_schema_title(rule, kind)}, not {_value_in_words(instance)}"
            yield Problem(f"{kind}.bad-value", message, here, help), keys
        case "minimum" | "maximum" | "exclusiveMinimum":
            if rule.get("title", "").startswith("a port"):
                help = "ports run from 1 to 65535; 29500 is the usual one for a rendezvous"
                yield Problem(f"{kind}.port-range", port_range_message(instance), here, help), keys
            else:
                yield _wrong_value_problem(error, document, kind, "out-of-range"), keys
        case "minItems" | "minProperties":
            message = f"{_value_label(keys)} is empty; it should be {rule.get('title')}"
            yield Problem(f"{kind}.empty", message, document.key_span(*keys)), keys
        case "pattern" | "minLength" if "propertyNames" in error.absolute_schema_path:
            message = f"`{instance}` cannot be {rule.get('title')}"
            joined = split_joined_key(instance, name=True)
            plain = re.sub(r"[\s-]+", "_", instance.strip())
            help = joined[1] if joined else odd_letter_help(instance) or "letters, digits and _, and no digit first"
            help = f"write `{plain}`" if plain != instance and compile_schema(rule, load_schema(kind))(plain) else help
            yield Problem(f"{kind}.bad-name", message, document.key_span(*keys, instance), help), (*keys, instance)
        case "pattern" | "minLength":
            yield _wrong_value_problem(error, document, kind, "bad-value"), keys
        case _:
            yield _wrong_value_problem(error, document, kind), keys


def _unknown_key_problems(error: ValidationError, document: Document, kind: str) -> Iterator[tuple[Problem, KeyPath]]:
    """The problems of unknown keys, with the keys to leave out of the data."""
    keys, instance, rule, _ = _error_parts(error)
    place = f" in {_value_label(keys)}" if keys else ""
    for name in instance:
        if name not in rule.get("properties", {}):
            span = document.key_span(*keys, name)
            help = _indentation_help(name, instance, rule, kind) if name[:1].isascii() else None
            help = help or advise_key(name, instance[name], keys, kind, rule, load_schema(kind), beside=instance).help
            yield Problem(f"{kind}.unknown-key", f"unknown key `{name}`{place}", span, help), (*keys, name)


def _indentation_help(name: str, instance: Mapping[str, Any], rule: Mapping[str, Any], kind: str) -> str | None:
    """The help for a key that stands beside an empty mapping instead of inside it, as `node-a: …` below `nodes:` in the
    same column; None for any other key."""
    root, known, value = load_schema(kind), rule.get("properties", {}), instance[name]
    above = [key for key in takewhile(lambda key: key != name, instance) if key in known]
    if not above or instance[above[-1]] is not None:
        return None
    inside = resolve_ref(known[above[-1]], root)
    free = (
        inside.get("additionalProperties")
        if value and (isinstance(value, dict) or not nearest_word(name, known))
        else None
    )
    wanted = inside.get("properties", {}).get(name) or free
    return f"indent it: it belongs under `{above[-1]}:`" if wanted and compile_schema(wanted, root)(value) else None


def _missing_key_problems(
    error: ValidationError, document: Document, kind: str
) -> Iterator[tuple[Problem | None, KeyPath]]:
    """The problems of missing keys; None in place of one that the problem of a misspelt key says already."""
    keys, instance, rule, wanted = _error_parts(error)
    for name in wanted:
        if name not in instance and name in _meant_keys(instance, keys, rule, kind):
            yield None, keys
        elif name not in instance:
            title = _schema_title(rule["properties"][name], kind)
            help = f"add `{name}:`, {title}" if title else None
            span = document.key_span(*keys) if keys else document.span()
            yield Problem(f"{kind}.missing-key", f"{_value_label(keys)} needs `{name}`", span, help), keys


def _stage_kind_problem(error: ValidationError, document: Document, kind: str) -> Problem | None:
    """The problem of a stage that has no kind or several; None where the problem of an unknown key says it already."""
    keys, instance, rule, wanted = _error_parts(error)
    choices = [branch["required"][0] for branch in wanted]
    given = [name for name in choices if name in instance]
    if not given and not _meant_keys(instance, keys, rule, kind).isdisjoint(choices):
        return None
    if not given and any(
        has_known_advice(name, keys, kind) for name in instance if name not in rule.get("properties", {})
    ):
        return None
    span = document.key_span(*keys, given[1]) if given else document.span(*keys)
    said = f"has {_backticked_list(given)}" if given else "has none of them"
    message = f"a stage has exactly one of {_backticked_list(choices)}; this one {said}"
    example = instance.get("name") if instance.get("name") in checks_with_foreign_names() else "ping"
    help = "write one stage for each" if given else f"begin it with one of them, for example `- check: {example}`"
    return Problem(f"{kind}.stage-kind", message, span, help)


def _wrong_value_problem(error: ValidationError, document: Document, kind: str, id: str = "wrong-type") -> Problem:
    keys, _, rule, _ = _error_parts(error)
    parent: Any = error.parent.schema if error.parent is not None else {}
    title = rule.get("title") or parent.get("title") or "something else"
    message = f"{_value_label(keys)} should be {title}, not {_value_in_words(error.instance)}"
    return Problem(f"{kind}.{id}", message, document.span(*keys), _wrong_value_help(error, document, kind))


def _wrong_value_help(error: ValidationError, document: Document, kind: str) -> str | None:
    """The help for a wrong value; None if none is known."""
    keys, _, rule, _ = _error_parts(error)
    if error.validator == "type" and "string" in rule["type"] and isinstance(error.instance, bool | int | float):
        return f'put it in quotes: "{document.texts.get(keys, error.instance)}"'
    if len(keys) == 2 and keys[0] == "nodes" and keys[1] in load_schema(kind)["$defs"]["node"]["properties"]:
        return f"indent it: `{keys[1]}` is a key of a node, and stands in the column of the nodes' names"
    joined = split_joined_key(keys[-1]) if keys and isinstance(keys[-1], str) else None
    if joined is not None:  # such as the key `a {gpus` of the line `a {gpus: 1}`
        return joined[1]
    if isinstance(error.instance, str):
        number = _number_help(error.instance, rule, kind) or _missing_space_help(error.instance, rule, kind)
        if number is not None:
            return number
    from runbook.files.bare_values import meant_value_help

    if (other := meant_value_help(keys, error.instance, compile_schema(rule, load_schema(kind)))) is not None:
        return other
    examples = rule.get("examples", [])
    return "for example " + " or ".join(f"`{_yaml_example(example)}`" for example in examples[:2]) if examples else None


def _number_help(text: str, rule: Mapping[str, Any], kind: str) -> str | None:
    """The help for a number that was given as text: in quotes, with its unit, or several of them with commas."""
    sound = compile_schema(rule, load_schema(kind))
    if "{{" in text:
        where = "inventories fill in no templates" if kind == "inventory" else "templates are not filled in here"
        return f"{where}: write the value itself" if sound(0) or sound(1) else None
    plain = plain_scalar(text.strip())
    if not isinstance(plain, str | None) and sound(plain):
        return f"without quotes: {text.strip()}"
    if _LIST.fullmatch(text) and sound(items := [int(part) for part in text.strip("[] ").split(",")]):
        return f"write it as a list: {items}"
    digits = _meant_integer(text)
    if digits is not None and sound(digits):
        return f"write {digits}"
    unit = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if unit is not None and sound(plain_scalar(unit[1])):
        return f"only the number: {unit[1]}"
    return None


def _meant_integer(text: str) -> int | None:
    """The number that `029500`, `29_500`, `29,500` or wide digits mean; None for other text, and for `0o…`, which may
    be octal on purpose."""
    found = _GROUPED_INTEGER.fullmatch(unicodedata.normalize("NFKC", text.strip()))
    if found is None or (found[1] and re.fullmatch("[0-7]+", found[2])):
        return None
    return int(re.sub("[_,]", "", found[2]))


def _missing_space_help(text: str, rule: Mapping[str, Any], kind: str) -> str | None:
    """The help for a text such as `check ping` or `gpus:8` where a mapping is wanted; None for other text."""
    joined = split_joined_key(text)
    if joined is None or not compile_schema({"type": rule.get("type", [])}, load_schema(kind))({}):
        return None
    return joined[1] if joined[0] in rule.get("properties", {}) else None


def _meant_keys(instance: Mapping[str, Any], keys: KeyPath, rule: Mapping[str, Any], kind: str) -> set[str | None]:
    """The known keys that the unknown keys of `instance`, the mapping at `keys`, were meant to be."""
    unknown = islice((name for name in instance if name not in rule.get("properties", {})), MAX_EXPLAINED_VALUES)
    return {advise_key(name, instance[name], keys, kind, rule, load_schema(kind)).key for name in unknown} - {None}


def _fitting_branch_errors(error: ValidationError) -> list[ValidationError]:
    """The errors of the one branch of an anyOf that takes the value's type; empty if no branch or several take it."""
    branches = values_by_key((int(inner.schema_path[0]), inner) for inner in error.context or []).values()
    fitting = [of for of in branches if not any(inner.validator == "type" and not inner.path for inner in of)]
    return fitting[0] if len(fitting) == 1 else []


def _without_wrong_values(data: Any, wrong: set[KeyPath]) -> Any:
    """A copy of `data` without the values at `wrong`; it shares all sound values with the original."""
    if not wrong:
        return data
    by_key: dict[str | int, set[KeyPath]] = {}
    for keys in wrong:
        if keys:
            by_key.setdefault(keys[0], set()).add(keys[1:])
    copy = data.copy()
    for key, inner in by_key.items():
        if isinstance(copy, list) and isinstance(key, int):
            copy[key] = None if () in inner else _without_wrong_values(copy[key], inner)
        elif () in inner:
            copy.pop(key, None)
        elif key in copy:
            copy[key] = _without_wrong_values(copy[key], inner)
    return copy


def _schema_title(schema_part: Mapping[str, Any], kind: str) -> str:
    if "title" not in schema_part and "$ref" in schema_part:
        schema_part = load_schema(kind)["$defs"][schema_part["$ref"].rpartition("/")[2]]
    title: str = schema_part.get("title", "")
    return title


def _value_label(keys: KeyPath) -> str:
    """The name of a value in a message: its key, its place in a list, or `the file`."""
    if not keys:
        return "the file"
    last = keys[-1]
    if isinstance(last, str):
        return f"`{last}`"
    if len(keys) > 1:
        word = "stage" if keys[-2] == "stages" else f"item {last + 1} of `{keys[-2]}`"
        return f"stage {last + 1}" if word == "stage" else word
    return f"item {last + 1}"


def _value_in_words(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value if len(value) <= 40 else value[:39] + "…"}"' if value else "empty text"
    return str(value)


def _yaml_example(value: object) -> str:
    """An example as one would type it: text without quotes, lists and mappings on one line."""
    if isinstance(value, list | dict):
        typed: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
        return typed.strip()
    return value if isinstance(value, str) else json.dumps(value)


def _backticked_list(names: list[str]) -> str:
    return name_list_text(f"`{name}`" for name in names)
