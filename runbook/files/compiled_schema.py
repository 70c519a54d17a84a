"""A JSON Schema turned into a plain yes-or-no function, a hundred times faster than jsonschema.

It finds mistakes, and jsonschema explains them: so a sound file does not import jsonschema (0.15 s), and of 10,000
nodes only the bad ones go through it. It knows the keywords our schemas use and refuses any other at once, so that a
schema cannot grow past it unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Accepts = Callable[[object], bool]

_SAYS_NOTHING = {"title", "description", "examples", "default", "$schema", "$id", "$defs"}
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


def accepts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Accepts:
    """A function that says whether a value is valid; `root` is where `#/$defs/…` are looked up."""
    return _Compiler(root).compile(schema)


class _Compiler:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def compile(self, schema: Mapping[str, Any] | bool) -> Accepts:
        if isinstance(schema, bool):
            return lambda _value: schema
        tests: list[Accepts] = []
        known = {"properties", "additionalProperties", "propertyNames", "items"}
        for keyword, wanted in schema.items():
            if keyword in _SAYS_NOTHING or keyword in known:
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
