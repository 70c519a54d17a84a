"""Single values of YAML: what an unquoted one means, and values written so that every YAML reader agrees.

A written one is on one line, and means the same to our reader and to those of YAML 1.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

Scalar = str | int | float | bool | None

_INTEGER = re.compile(r"\A-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"\A-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?")
_NULLS = ("", "~", "null")
_BARE = re.compile(r"(?:--?(?=[A-Za-z]))?[A-Za-z0-9_./~][A-Za-z0-9_./~@+=-]*")
_BASED = re.compile(r"[-+]?0[oxb][0-9A-Fa-f_]+")
_RESOLVER: Any = yaml.resolver.Resolver()
_TEXT = "tag:yaml.org,2002:str"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


class TypedFloat(float):
    """A number that stands in texts as it was typed: the version `2.10` is not 2.1 there."""

    __slots__ = ("_typed",)
    _typed: str

    def __new__(cls, typed: str) -> TypedFloat:
        number = super().__new__(cls, typed)
        number._typed = typed
        return number

    def __str__(self) -> str:
        return self._typed


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text == "true":
        return True
    if text == "false":
        return False
    if len(text) < 400:  # longer ones do not occur, and Python refuses to parse very long ones
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
    return text


def flow(value: object) -> str:
    """A scalar, `[a, b]` or `{key: value}`. Raises ValueError for what our reader could not read back."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(key))}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(value)


def scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = re.sub(r"^(-?[0-9]+)e", r"\1.0e", repr(value))
        if isinstance(plain_scalar(text), str):  # inf, nan, a thousand digits
            raise ValueError(f"{text} cannot be written as a number")
        return text
    text = str(value)
    if not _BARE.fullmatch(text) or not isinstance(plain_scalar(text), str) or _means_more(text):
        return '"' + "".join(map(_escaped, text)) + '"'
    return text


def _means_more(text: str) -> bool:
    """Whether some YAML reader takes the bare text for a boolean, a number or a date: `no`, `0644`, `1_000`, `1e3`,
    `0o7`."""
    if _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) != _TEXT or _BASED.fullmatch(text):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
