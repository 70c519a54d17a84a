"""Bounds the work of a template in Jinja2's sandbox, in steps and in size, whatever the template calls.

Every character and item that is made or looked at, and every turn of a loop, is taken from one budget. An expression
with a huge result, `'%999999999d'` or `x | center(10 ** 9)`, is refused before it is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_VALUE_SIZE = 1_000_000  # characters and items of one value
MAX_TEMPLATE_STEPS = 2_000_000  # characters, items and turns of loops that one template makes or looks at, together
MAX_TEMPLATE_CHARACTERS = 100_000  # characters of a text with templates in it
MAX_EXPONENT = 64
MAX_INTEGER_BITS = 256  # of a whole number
MAX_LIST_DEPTH = 50  # lists in lists
_FORMAT_NUMBER = re.compile(r"[0-9]{1,20}")
_GROWS_TO_WIDTH = frozenset({"center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice"})
_GROWS_BY_WIDTH = frozenset({"expandtabs", "indent", "tojson", "pprint", "round"})
_GROWS_BY_TEXT = frozenset({"join", "wordwrap", "truncate", "urlize", "xmlattr", "translate"})
"""Filters and methods that return more than they are given: up to a width, up to a width for every item, up to a text
for every item. All others return as much as they are given, or a small multiple."""
_FORMATTERS = frozenset({"format", "format_map"})
_MEASURED_TYPES = (str, bytes, list, tuple, dict, range, int)

_steps_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuch(Exception):
    """A template exceeds a bound; the message says which."""


@contextmanager
def bounded_work() -> Iterator[None]:
    """Gives the template that is computed inside the block a budget of its own."""
    token = _steps_left.set([MAX_TEMPLATE_STEPS])
    try:
        yield
    finally:
        _steps_left.reset(token)


def spend_steps(value: object = None, *, steps: int = 1) -> None:
    """Takes the size of a value, and some steps, from the budget. Raises TooMuch when it is spent."""
    left = _steps_left.get()
    if left is None:
        return
    left[0] -= steps + (0 if value is None else size_of(value))
    if left[0] < 0:
        raise TooMuch(f"it takes more than {MAX_TEMPLATE_STEPS:,} steps")


def size_of(value: object) -> int:
    """The characters and items of a value and of all values inside, each counted as often as it occurs. Raises TooMuch
    above MAX_VALUE_SIZE."""
    size = _bounded_size(value, MAX_VALUE_SIZE, 0)
    if size > MAX_VALUE_SIZE:
        raise TooMuch(f"a value of it has more than {MAX_VALUE_SIZE:,} characters or items")
    return size


def _bounded_size(value: object, most: int, depth: int) -> int:
    """The size of a value as `size_of` counts it; counting stops once it is above `most`. Raises TooMuch."""
    if isinstance(value, str | bytes | range):
        return len(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise TooMuch(f"a number of it has more than {MAX_INTEGER_BITS} bits")
        return 1
    if isinstance(value, Mapping):
        inner: Iterable[object] = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    else:
        return 1
    if depth > MAX_LIST_DEPTH:
        raise TooMuch(f"lists are nested more than {MAX_LIST_DEPTH} levels deep")
    size = 1
    for part in inner:
        size += _bounded_size(part, most - size, depth + 1)
        if size > most:
            break
    return size


def _refuse_growth(name: str, subject: object, arguments: list[object]) -> None:
    """Raises TooMuch if the filter or method `name` would make more than MAX_VALUE_SIZE characters or items from
    `subject`, by a width or by a text for every character or item."""
    size = max(1, _bounded_size(subject, MAX_VALUE_SIZE, 0))
    if name in _FORMATTERS and isinstance(subject, str):
        _refuse_format(subject, arguments)
        return
    grown = 0
    if name in _GROWS_TO_WIDTH:
        grown = max(map(_numeric_amount, arguments), default=0)
    elif name in _GROWS_BY_WIDTH:
        grown = size * max(map(_argument_width, arguments), default=0)
    elif name in _GROWS_BY_TEXT:
        grown = size * max((_bounded_size(argument, MAX_VALUE_SIZE, 0) for argument in arguments), default=0)
    elif name == "replace" and isinstance(subject, str | bytes) and len(arguments) > 1:
        old, new = arguments[:2]
        times = subject.count(old) if isinstance(old, type(subject)) else size  # type: ignore[arg-type]
        grown = times * _bounded_size(new, MAX_VALUE_SIZE, 0)
    elif name == "sum" and isinstance(subject, list | tuple) and any(isinstance(one, list | tuple) for one in subject):
        grown = size * len(subject)
    if grown > MAX_VALUE_SIZE:
        raise TooMuch(f"`{name}` would make more than {MAX_VALUE_SIZE:,} characters or items")


def _numeric_amount(argument: object) -> int:
    """The amount of an argument that is a number, a float too, as `round` and others take it; 0 for other arguments."""
    if isinstance(argument, int | float):
        return int(min(abs(argument), MAX_VALUE_SIZE + 1)) if argument == argument else 0
    return 0


def _argument_width(argument: object) -> int:
    return max(_numeric_amount(argument), _bounded_size(argument, MAX_VALUE_SIZE, 0))


def _refuse_format(text: str, arguments: list[object]) -> None:
    """Raises TooMuch if a format could give more than MAX_VALUE_SIZE characters. A width may stand in the text or among
    the values (`%*d`, `{:{}}`), and is counted for every place that is filled in."""
    places = text.count("%") + text.count("{")
    widths = [int(found[0]) for found in _FORMAT_NUMBER.finditer(text)]
    widths += [
        _argument_width(argument) if "*" in text or "{" in text else _bounded_size(argument, MAX_VALUE_SIZE, 0)
        for argument in _flattened_arguments(arguments)
    ]
    if max(widths, default=0) * places > MAX_VALUE_SIZE:
        raise TooMuch(f"a text with values filled in would have more than {MAX_VALUE_SIZE:,} characters")


def _flattened_arguments(arguments: list[object]) -> Iterator[object]:
    for argument in arguments:
        if isinstance(argument, Mapping):
            yield from argument.values()
        elif isinstance(argument, list | tuple):
            yield from argument
        else:
            yield argument


def _bounded_function(name: str, function: Any) -> Callable[..., Any]:
    """The filter or test, with bounds. Jinja2 gives some of them a first argument of its own, such as the context, and
    marks those by an attribute."""
    own = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @wraps(function)
    def bounded(*arguments: Any, **named: Any) -> Any:
        values = [_counted_value(value) for value in arguments[own:]]
        named = {key: _counted_value(value) for key, value in named.items()}
        everything = [*values, *named.values()]
        if everything:
            _refuse_growth(name, everything[0], everything[1:])
        result = function(*arguments[:own], *values, **named)
        spend_steps(result)
        return result

    return bounded


@pass_context
def _count_turn(_: Context, value: object, weight: int) -> object:
    spend_steps(steps=weight)
    return value


@pass_context
def _counted_items(_: Context, items: Any) -> Any:
    """The items that a loop goes over, or a value that is compared or sliced, counted."""
    return _counted_value(items)


def _counted_value(value: Any) -> Any:
    """The value, taken from the budget. A generator is made into a list first, since its length is not known."""
    if isinstance(value, Iterator) and not isinstance(value, jinja2.Undefined):
        gathered = []
        for item in value:
            spend_steps(item)
            gathered.append(item)
        return gathered
    spend_steps(value)
    return value


@pass_context
def _joined_text(_: Context, *parts: object) -> str:
    for part in parts:
        spend_steps(part)
    return "".join(map(str, parts))


class _Counting(NodeTransformer):
    """Adds counting calls to a template's tree at loops, macros, comparisons, slices and `~`, which call no method of
    the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter_call("(items)", node.iter)
        node.body.insert(0, _turn_counter_node(node))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _turn_counter_node(node))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filter_call("(items)", node.expr)
        for operand in node.ops:
            operand.expr = _filter_call("(items)", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filter_call("(items)", node.node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter_call("(joined)", *node.nodes)


def _turn_counter_node(node: nodes.Node) -> nodes.Output:
    """A node that counts one turn of `node`, by the number of nodes inside and by the length of their literal text."""
    weight = sum(1 for _ in node.find_all(nodes.Node))
    weight += sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    return nodes.Output([_filter_call("(turn)", nodes.Const(""), nodes.Const(weight))], lineno=node.lineno)


def _filter_call(name: str, first: nodes.Node, *others: nodes.Node) -> nodes.Filter:
    return nodes.Filter(first, name, list(others), [], None, None, lineno=first.lineno)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that computes nothing while it compiles a template, and counts everything that the template
    computes."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, **options)
        for table in (self.filters, self.tests):
            for name, function in tuple(table.items()):
                table[name] = _bounded_function(name, function)
        # No template can name these.
        self.filters = {**self.filters, "(turn)": _count_turn, "(items)": _counted_items, "(joined)": _joined_text}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counting().visit(tree)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        spend_steps(left)
        spend_steps(right)
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                many = isinstance(one, str | bytes | list | tuple) and isinstance(other, int)
                if many and size_of(one) * other > MAX_VALUE_SIZE:
                    raise TooMuch(f"the result would have more than {MAX_VALUE_SIZE:,} characters or items")
        elif operator == "%" and isinstance(left, str | bytes):
            _refuse_format(left if isinstance(left, str) else left.decode("latin-1"), [right])
        elif operator == "**" and isinstance(right, int | float) and abs(right) > MAX_EXPONENT:
            raise TooMuch(f"a power of more than {MAX_EXPONENT}")
        result = super().call_binop(context, operator, left, right)
        spend_steps(result)
        return result

    def call(__self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N805
        subject = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # the sandbox wraps `format`
        if isinstance(subject, _MEASURED_TYPES):
            spend_steps(subject)
            arguments = tuple(_counted_value(value) for value in arguments)
            _refuse_growth(getattr(__obj, "__name__", ""), subject, [*arguments, *named.values()])
        else:
            for value in arguments:
                spend_steps(value)
        for value in named.values():
            spend_steps(value)
        result = super().call(__context, __obj, *arguments, **named)
        spend_steps(result)
        return result
