"""A spec written down for one shell. A value that did not pass through that shell's own quoting stops it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import jinja2

import runbook
from runbook.launch.activation import read_activation
from runbook.launch.exits import secrets_file, stops
from runbook.launch.probe import PROBE
from runbook.launch.quote import CannotQuote, Dialect, Literal, bat, ps1, sh
from runbook.launch.spec import ScriptSpec
from runbook.model.inventory import EnvValue
from runbook.model.secret import Secret

DIALECTS: Mapping[str, Dialect] = {"sh": sh.DIALECT, "bat": bat.DIALECT, "ps1": ps1.DIALECT}

_Attempt = tuple[tuple[str, ...], Callable[[], object], bool]
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, slots=True)
class Script:
    """Files for one node, by name: the script, and one with the secrets where there are any (mode 0600 both)."""

    name: str
    files: Mapping[str, bytes]


def write(spec: ScriptSpec, shell: str) -> Script:
    """The script for `shell` (sh, bat or ps1). Raises CannotQuote for the first thing that shell cannot carry."""
    if not _FILE_NAME.match(spec.name):
        raise ValueError(f"{spec.name!r} cannot be the name of a script")
    try:
        for _, attempt, _ in _about_all(spec, DIALECTS[shell]):
            attempt()
        return _written(spec, shell)  # which quotes every value: looking at each beforehand would do it twice
    except CannotQuote as refused:
        raise next(complaints(spec, shell), refused) from None


def _written(spec: ScriptSpec, shell: str) -> Script:
    dialect = DIALECTS[shell]
    secrets = {key: value for key, value in spec.environment.items() if isinstance(value, Secret)}
    name, beside = f"{spec.name}.{shell}", secrets_file(spec, shell)
    activation = read_activation(spec.activate, shell)
    text = _template(shell).render(
        version=runbook.__version__,
        spec=spec,
        environment={key: value for key, value in spec.environment.items() if key not in secrets},
        secrets=beside if secrets else None,
        file=name,
        activation=activation,
        stops=stops(spec, shell, activation),
        probe=PROBE,
    )
    try:
        files = {name: dialect.encode(text)}
    except CannotQuote as refused:
        raise CannotQuote(refused.reason, refused.value, ("command", "0")) from None
    if secrets:
        lines = ["@echo off"] if shell == "bat" else []
        lines += [dialect.setting(key, value.reveal()) for key, value in secrets.items()]
        files[beside] = dialect.encode("".join(f"{line}\n" for line in lines))
    return Script(name, files)


def complaints(spec: ScriptSpec, shell: str) -> Iterator[CannotQuote]:
    """Everything in the spec that `shell` cannot carry, each with its place. No secret is in what they say."""
    dialect = DIALECTS[shell]
    for place, attempt, secret in _attempts(spec, dialect):
        try:
            attempt()
        except CannotQuote as refused:
            if secret:
                yield CannotQuote(f"a secret {refused.reason}", None, place)
            else:
                yield CannotQuote(refused.reason, refused.value, place)


def _attempts(spec: ScriptSpec, dialect: Dialect) -> Iterator[_Attempt]:
    """Everything that is to be quoted: where it stands, the quoting itself, and whether it is a secret."""
    bound = functools.partial
    filters = dialect.filters
    for key, value in spec.environment.items():
        yield ("environment", key), bound(dialect.setting, key, _revealed(value)), isinstance(value, Secret)
    for process in spec.processes:
        for key, text in process.environment.items():
            yield ("process", str(process.local_rank), key), bound(dialect.setting, key, text), False
    for number, word in enumerate(spec.command or ()):
        yield ("command", str(number)), bound(filters["argument"], word), False
    if spec.command and "programs" in filters:
        yield ("command", "0"), bound(filters["programs"], spec.command[0]), False
    if spec.activate is not None:
        yield ("activate",), bound(filters["line"], spec.activate), False
    if spec.workdir is not None:
        yield ("workdir",), bound(filters["folder"], spec.workdir), False
    if spec.guards:
        yield ("address",), bound(filters["word"], spec.guards.address), False
        yield ("python",), bound(filters.get("programs", filters["argument"]), spec.guards.python), False
    yield from _about_all(spec, dialect)


def _about_all(spec: ScriptSpec, dialect: Dialect) -> Iterator[_Attempt]:
    """What printing each value does not find: names that are patterns, and what no single value is to blame for."""
    bound = functools.partial
    for key in (*spec.unset, *spec.unset_prefixes):
        yield ("unset", key), bound(dialect.filters["name"], key), False
    keys = [*spec.environment, *(spec.processes[0].environment if spec.processes else ())]
    yield ("environment", keys[-1] if keys else ""), bound(dialect.check_names, keys), False
    yield ("command", "0"), bound(dialect.check_command, spec.command or ()), False


def _revealed(value: EnvValue) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def _only(literal: type[Literal]) -> Callable[[object], object]:
    def finalize(value: object) -> object:
        if not isinstance(value, (literal, jinja2.Undefined)):
            raise TypeError(f"the template printed {value!r} without quoting it for this shell")
        return value

    return finalize


@functools.cache
def _templates(shell: str) -> jinja2.Environment:
    dialect = DIALECTS[shell]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.launch"),
        undefined=jinja2.StrictUndefined,
        finalize=_only(dialect.literal),
        autoescape=False,  # shells are not HTML: `finalize` refuses what was not quoted for this shell
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Ten thousand nodes have few different values; secrets do not pass here.
    remembered = functools.lru_cache(maxsize=4096, typed=True)
    environment.filters.update({name: remembered(quote) for name, quote in dialect.filters.items()})
    return environment


@functools.cache
def _template(shell: str) -> jinja2.Template:
    return _templates(shell).get_template(f"launch.{shell}.j2")
