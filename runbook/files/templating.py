"""Fills in `{{ expressions }}` in values of playbooks, with Jinja2 inside its sandbox.

A value that is one expression and nothing else keeps its type: `"{{ iterations }}"` is the number 20, not "20".
Templates see only variables: no files, no environment, no internals of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import meta, pass_context
from jinja2.environment import TemplateExpression
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from runbook.files.suggestions import did_you_mean
from runbook.files.template_bounds import (
    MAX_TEMPLATE_CHARACTERS,
    BoundedEnvironment,
    TooMuch,
    bounded_work,
    size_of,
    spend_steps,
)
from runbook.model.errors import FilesWrong, Problem, Span


def as_text(value: object) -> object:
    """A value for use inside other text: true and false as YAML writes them, all others unchanged."""
    return ("false", "true")[value] if isinstance(value, bool) else value


@pass_context
def _finalize_value(_: Context, value: object) -> object:
    spend_steps(value)
    return as_text(value)


def _make_environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        undefined=jinja2.StrictUndefined, finalize=_finalize_value, keep_trailing_newline=True, autoescape=False
    )
    for name in set(environment.globals) - {"range"}:
        del environment.globals[name]
    return environment


_JINJA_ENVIRONMENT = _make_environment()

# Variables of Ansible, and the variables of runbook that hold the same.
_ANSIBLE_EQUIVALENTS = {
    **dict.fromkeys(("inventory_hostname", "inventory_hostname_short", "ansible_hostname", "ansible_fqdn"), "node"),
    "ansible_host": "address",
}

_BOOLEAN_LITERALS = {**dict.fromkeys(("yes", "y", "on"), "true"), **dict.fromkeys(("no", "n", "off"), "false")}

_MAX_CACHED_TEMPLATES = 1000  # compiled templates: a launch's words are the same for every one of many nodes


def fill_templates(value: object, variables: Mapping[str, object], span: Span | None = None) -> Any:
    """`value` with every template in it filled in, lists and mappings too. Raises FilesWrong with all problems."""
    problems: list[Problem] = []
    filled = _fill_nested(value, variables, span, problems)
    if problems:
        raise FilesWrong(problems)
    return filled


def condition_holds(expression: str, variables: Mapping[str, object], span: Span | None = None) -> bool:
    """Whether a `when:` holds. Only true and false count: the text "false" would pass for true elsewhere."""
    text = expression.strip()
    inner = _single_expression(text)
    value = _evaluate(text if inner is None else inner, variables, span)
    if isinstance(value, bool):
        return value
    message = f"`when: {expression}` gives {_type_in_words(value)}, not true or false"
    help = "compare it, for example `x > 0`, `x == 'yes'` or `x is defined`"
    raise FilesWrong.of("template.not-a-condition", message, span=span, help=help)


def template_variables(value: object) -> set[str]:
    """Every variable that the templates in `value` mention; nothing for a template that cannot be parsed."""
    if isinstance(value, str):
        return (
            set(_undeclared_variables(value)) if is_template(value) and len(value) <= MAX_TEMPLATE_CHARACTERS else set()
        )
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(template_variables, inner))


@lru_cache(maxsize=1024)
def _undeclared_variables(template: str) -> frozenset[str]:
    try:
        return frozenset(meta.find_undeclared_variables(_JINJA_ENVIRONMENT.parse(template)))
    except (jinja2.TemplateSyntaxError, RecursionError):
        return frozenset()


def _fill_nested(value: object, variables: Mapping[str, object], span: Span | None, problems: list[Problem]) -> object:
    if isinstance(value, str):
        try:
            return _fill_text(value, variables, span)
        except FilesWrong as wrong:
            problems.extend(problem for problem in wrong.problems if problem not in problems)
            return value
    if isinstance(value, Mapping):
        return {key: _fill_nested(inner, variables, span, problems) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fill_nested(inner, variables, span, problems) for inner in value]
    return value


def is_template(text: str) -> bool:
    return any(mark in text for mark in ("{{", "{%", "{#"))


@lru_cache(_MAX_CACHED_TEMPLATES)
def _compiled_template(text: str) -> jinja2.Template:
    return _JINJA_ENVIRONMENT.from_string(text)


@lru_cache(_MAX_CACHED_TEMPLATES)
def _compiled_expression(text: str) -> TemplateExpression:
    return _JINJA_ENVIRONMENT.compile_expression(text, undefined_to_none=False)


def _fill_text(text: str, variables: Mapping[str, object], span: Span | None) -> object:
    if not is_template(text):
        return text
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        message = f"a text with templates in it has more than {MAX_TEMPLATE_CHARACTERS:,} characters"
        help = "put what has no templates into a file of its own"
        raise FilesWrong.of("template.syntax", message, span=span, help=help)
    inner = _single_expression(text)
    if inner is not None:
        return _evaluate(inner, variables, span)
    try:
        template = _compiled_template(text)
        with bounded_work():
            return template.render(variables)
    except Exception as error:  # noqa: BLE001  (a template may raise whatever its operators raise)
        raise FilesWrong([_template_problem(error, text, variables, span)]) from None


def _evaluate(expression: str, variables: Mapping[str, object], span: Span | None) -> object:
    try:
        compiled = _compiled_expression(expression)
        with bounded_work():
            value = compiled(dict(variables))
            if isinstance(value, jinja2.Undefined):
                str(value)  # StrictUndefined says what is undefined
            size_of(value)
            return _plain_data(value)
    except Exception as error:  # noqa: BLE001
        raise FilesWrong([_template_problem(error, expression, variables, span)]) from None


@lru_cache(_MAX_CACHED_TEMPLATES)
def _single_expression(text: str) -> str | None:
    """The inside of a text that is exactly one `{{ expression }}`; None for any other text."""
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    try:
        kinds = [kind for _, kind, _ in _JINJA_ENVIRONMENT.lex(text)]
    except jinja2.TemplateSyntaxError:
        return None
    if kinds.count("variable_begin") == 1 and kinds[0] == "variable_begin" and kinds[-1] == "variable_end":
        first = 3 if text[2] in "-+" else 2  # `{{-` and `-}}` trim the text around them; here there is none
        last = -3 if text[-3] in "-+" else -2
        return text[first:last]
    return None


def _plain_data(value: object) -> object:
    """The value as plain data, since nothing else may leave a template; a generator, as `map` makes it, becomes a list.
    Raises TypeError for any other value."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range | GeneratorType):
        return [_plain_data(inner) for inner in value]
    if isinstance(value, jinja2.Undefined):
        return str(value)
    raise TypeError("the expression gives no plain value")


def _template_problem(error: Exception, text: str, variables: Iterable[str], span: Span | None) -> Problem:
    """The problem that an error of Jinja's, or of the template's own operators, stands for."""
    shown = text.strip() if len(text) <= 60 else text.strip()[:59] + "…"
    if isinstance(error, jinja2.UndefinedError):
        name = str(error).split("'")[1] if str(error).endswith("is undefined") and "'" in str(error) else ""
        message = f"{error} in `{shown}`" if not name else f"the variable `{name}` is not defined"
        help = did_you_mean(name, sorted(variables)) if name else None
        if name in _ANSIBLE_EQUIVALENTS:
            help = f"in the commands of shell and launch stages that is `{_ANSIBLE_EQUIVALENTS[name]}`"
        if name.lower() in _BOOLEAN_LITERALS:
            help = f"write `{_BOOLEAN_LITERALS[name.lower()]}`: `{name}` is no truth value here"
        return Problem("template.undefined", message, span, help)
    if isinstance(error, jinja2.TemplateSyntaxError):
        return Problem(
            "template.syntax",
            f"`{shown}` is not a template: {error.message}",
            span,
            _syntax_help(str(error.message), text),
        )
    if isinstance(error, TooMuch):
        help = "compute it outside, and hand the result over: -e name=value"
        return Problem("template.failed", f"`{shown}` is too much work: {error}", span, help)
    if isinstance(error, RecursionError | MemoryError):
        return Problem("template.syntax", f"`{shown}` is nested too deep", span)
    if isinstance(error, SecurityError):
        return Problem("template.forbidden", f"`{shown}` reaches for what templates may not use: {error}", span)
    return Problem("template.failed", f"`{shown}` cannot be computed: {error}", span)


def _syntax_help(said: str, text: str) -> str | None:
    """The help for a template that Jinja cannot parse, by Jinja's message `said`; None if none is known."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    if ("chunk after" in said or "'='" in said) and re.search(r"[^=!<>]=(?!=)", bare):
        return "two things are compared by `==`"
    if re.search("&&|[|][|]", bare):
        return "write `and`, `or` and `not`"
    if unknown := re.match(r"No (filter|test) named '(\w+)'", said):
        return did_you_mean(
            unknown[2], _JINJA_ENVIRONMENT.filters if unknown[1] == "filter" else _JINJA_ENVIRONMENT.tests
        )
    if "end of print statement" in said:
        return "an expression stands between `{{` and `}}`"
    if block := re.search(r"innermost block that needs to be closed is '(\w+)'", said):
        return f"close it: `{{% end{block[1]} %}}`"
    return None


def _type_in_words(value: object) -> str:
    for kinds, word in ((str, "text"), (int | float, "a number"), (list, "a list"), (dict, "a mapping")):
        if isinstance(value, kinds):
            return word
    return "nothing"
