"""Rules about YAML itself: plain scalars that are text here and something else in YAML 1.1, which other readers follow;
typographic quotes, which are no quotes in YAML; unused anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from runbook.files.address import TYPOGRAPHIC_QUOTES
from runbook.files.scalars import YAML_RESOLVER
from runbook.files.yaml_document import Document, iterate_scalars
from runbook.model.errors import Problem, Span

_SURPRISING_SCALAR = re.compile(
    r"(?![0-9]+\.[0-9]+\.)[-+]?[.0-9][0-9a-fA-F_.xb:+ TtZ-]*|[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)"
    r"|[yY](?:es|ES)|[nN][oO]|[oO](?:[nN]|ff|FF)|True|TRUE|False|FALSE|Null|NULL"
)
"""Texts that are worth asking the resolver about, which takes longer than this pattern; no IP address matches."""
_CONSTRUCTOR: Any = yaml.constructor.SafeConstructor()
_ANCHOR = re.compile(r"&\S+\s+")


def yaml_surprises(document: Document) -> Iterator[Problem]:
    """Reports unquoted texts that other YAML readers take for something else."""
    lines = document.lines
    for text, span, is_key in _surprising_scalars(document):
        surprise = _yaml11_surprise(text)
        if surprise is not None and span is not None and _is_unquoted(text, span, lines):
            id, message, help = surprise
            yield Problem(
                id, message, span, f'write "{text}" in quotes' if is_key and id == "yaml.odd-number" else help
            )


def odd_quotes(document: Document) -> Iterator[Problem]:
    lines = document.lines
    for keys, value in iterate_scalars(document.data):
        if isinstance(value, str) and value[:1] and value[0] in TYPOGRAPHIC_QUOTES and value[-1] in TYPOGRAPHIC_QUOTES:
            span = document.span(*keys)
            if span is not None and _is_unquoted(value, span, lines):
                message = f"`{value[0]}` is not a quote in YAML: it is a part of the text"
                yield Problem("yaml.odd-quotes", message, span, "write \" or '")


def unused_anchors(document: Document) -> Iterator[Problem]:
    for anchor in document.anchors:
        if not anchor.used:
            message = f"the anchor `&{anchor.name}` is never used"
            help = f"refer to it with `*{anchor.name}` or `<<: *{anchor.name}`, or remove it"
            yield Problem("yaml.unused-anchor", message, anchor.span, help)


def _surprising_scalars(document: Document) -> Iterator[tuple[str, Span | None, bool]]:
    """Values and keys that match `_SURPRISING_SCALAR`, their places, and whether each is a key; a key is always
    text."""
    for keys, value in iterate_scalars(document.data):
        if isinstance(value, str) and _SURPRISING_SCALAR.fullmatch(value):
            yield value, document.span(*keys), False
    for keys in document.key_spans:
        if _SURPRISING_SCALAR.fullmatch(str(keys[-1])):
            yield str(keys[-1]), document.key_span(*keys), True


def _is_unquoted(text: str, span: Span, lines: list[str]) -> bool:
    """Whether the text stands at `span` without quotes, with or without an anchor before it."""
    line, start = lines[span.line - 1], span.column - 1
    anchor = _ANCHOR.match(line, start)
    return line.startswith(text, anchor.end() if anchor else start)


MAX_NUMBER_CHARACTERS = 100
"""Characters of a number whose value is worked out: for a number to the base 60 the work grows with their square."""


@lru_cache(maxsize=10_000)
def _yaml11_surprise(text: str) -> tuple[str, str, str] | None:
    """The rule's id, the message and the help for a text that is something else in YAML 1.1; None for other texts."""
    tag: str = YAML_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
    quoted = f'"{text}" in quotes'
    if tag == "bool":
        meant = str(yaml.SafeLoader.bool_values[text.lower()]).lower()
        help = f"write {meant} if you mean it, otherwise {quoted}"
        return "yaml.truth-word", f"`{text}` is {meant} to other YAML readers, and text here", help
    if tag == "null":
        help = f"write null if you mean nothing, otherwise {quoted}"
        return "yaml.null-word", f"`{text}` is nothing to other YAML readers, and text here", help
    if tag == "timestamp":
        return "yaml.date", f"`{text}` is a date to other YAML readers, and text here", f"write {quoted}"
    if tag in ("int", "float"):
        message = f"`{text}` is {_yaml11_number(text, tag)} to other YAML readers, and text here"
        octal = re.fullmatch(r"[-+]?0[0-7_]+", text)
        id = "yaml.base-60" if ":" in text else "yaml.octal" if octal else "yaml.odd-number"
        help = f"write {quoted}" if id != "yaml.odd-number" else f"write a plain number, or {quoted}"
        return id, message, help
    return None


def _yaml11_number(text: str, tag: str) -> str:
    """The number that YAML 1.1 reads from a text, for a message."""
    if len(text) > MAX_NUMBER_CHARACTERS:
        return "a number"
    node = yaml.ScalarNode(tag, text)
    try:
        return str(_CONSTRUCTOR.construct_yaml_int(node) if tag == "int" else _CONSTRUCTOR.construct_yaml_float(node))
    except (ValueError, OverflowError):
        return "a number"


DOCUMENT_RULES = (yaml_surprises, odd_quotes, unused_anchors)
