"""The launch script of a node: its file name, what it does (`ScriptSpec`, complete and independent of any shell), why
it may stop, and its text for one shell. A value that did not pass through that shell's quoting cannot get into the
text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import jinja2

import runbook
from runbook.launch.preconditions import RENDEZVOUS_PROBE, STOP_EXIT_CODES, Activation, Guards, read_activation
from runbook.launch.quote import CannotQuote, Dialect, Literal, dialect_of, printable
from runbook.model.inventory import EnvValue
from runbook.model.secrets import Secret

LAUNCH_SCRIPT_NAME = "launch"
"""The name of the script that starts a node's job, whatever its stage is called."""

_MAX_STAGE_CHARACTERS = 60
"""The most characters of a script's name that come from its stage."""
# Windows allows no file with such a name, not even with an ending, as in `con.bat`.
WINDOWS_DEVICES = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")


def slug(text: str) -> str:
    """A stage's name as a file name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:_MAX_STAGE_CHARACTERS].rstrip("-") or "stage"
    return f"stage-{name}" if WINDOWS_DEVICES.fullmatch(name) else name


def script_names(stages: Iterable[str]) -> dict[str, str]:
    """A file name for each stage, all of them different."""
    names: dict[str, str] = {}
    taken = {LAUNCH_SCRIPT_NAME}
    for stage in stages:
        plain = name = slug(stage)
        number = 2
        while name in taken:
            name = f"{plain}-{number}"
            number += 1
        taken.add(name)
        names[stage] = name
    return names


@dataclass(frozen=True, slots=True)
class ScriptProcess:
    """One process that the script starts: a rank, or a launcher that starts the ranks itself."""

    local_rank: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScriptSpec:
    """What a script `NAME.sh`, `NAME.bat` or `NAME.ps1` of one node does.

    `command`: the program and its arguments. A word that starts with `./` is a file beside the script, a word that
    starts with `~/` a file in the home folder, unless it is a `Word`. None: the script's own arguments are the command.
    `unset`: names of variables that must not be inherited; `unset_prefixes`: beginnings of such names. `workdir`: where
    the command runs; None: beside the script. `guards`: what the script checks first; None: nothing, as the program
    checks it itself. `ranks`: how many ranks of the job run on the node, which may be more than the script's processes.
    With `stacks` Python first looks for modules in the folder that RUNBOOK_STACKS names, whatever sets PYTHONPATH (only
    in `sh`).
    """

    node: str
    name: str
    made_from: tuple[str, ...]
    world_size: int
    environment: Mapping[str, EnvValue]
    processes: tuple[ScriptProcess, ...]
    command: tuple[str, ...] | None
    activate: str | None = None
    workdir: str | None = None
    unset: tuple[str, ...] = ()
    unset_prefixes: tuple[str, ...] = ()
    guards: Guards | None = None
    ranks: int = 1
    stacks: bool = False


@dataclass(frozen=True, slots=True)
class ScriptStop:
    """A reason why a script stops before it starts anything: its exit code, the `event` that runbook reads, and the
    sentence that people read (`says`). Exit codes are documented and do not change."""

    code: int
    event: str
    says: str


def possible_stops(spec: ScriptSpec, shell: str, activation: Activation) -> dict[str, ScriptStop]:
    """The stops that are possible for this script, by event, with the script's own names in their sentences."""
    node = spec.node
    sentences = {
        "program-missing": f"{node} has no program {spec.command[0]}: "
        "install it, or name another one in `command:`, `python:` or `activate:`"
        if spec.command
        else f"{node} has no such program: install it, or name another one"  # the script puts the program's name first
    }
    if spec.workdir is not None:
        sentences["workdir-missing"] = (
            f"{node} has no folder {spec.workdir}, or none that this user may enter: make it, or correct `workdir:`"
        )
    if spec.activate:
        sentences["activation-failed"] = (
            f"{node} could not run the activate line `{spec.activate}`: "
            "run it there by hand, and mend what it names or `activate:` itself"
        )
    if spec.guards and activation.needs:
        sentences["environment-missing"] = (
            f"{node} has no {activation.needs}, which `activate:` asks for: "
            f"{'install' if activation.conda else 'make'} it, or correct the line"
        )
    if any(isinstance(value, Secret) for value in spec.environment.values()):
        sentences["secrets-missing"] = (
            f"{node} has no readable {secrets_file_name(spec, shell)} beside this script: copy both"
        )
    if spec.guards:
        sentences |= _rendezvous_stop_texts(node, spec.guards, shell)
    return {
        event: ScriptStop(code, event, printable(sentences[event]))
        for event, code in STOP_EXIT_CODES.items()
        if event in sentences
    }


def _rendezvous_stop_texts(node: str, guards: Guards, shell: str) -> dict[str, str]:
    """The sentences of the stops that the rendezvous can cause, by event. An address that is no name has none about
    resolving; a node without rank 0 has none about the port."""
    sentences = {}
    if guards.by_name:
        sentences["address-unresolved"] = (
            f"{node} cannot resolve MASTER_ADDR {guards.address}: "
            "correct `rendezvous: {address: ...}`, or add the name to DNS or to the hosts file"
        )
    if guards.astray or (guards.by_name and guards.several_nodes):
        sentences["address-loopback"] = (
            f"MASTER_ADDR {guards.address} is {node} itself by its loopback address, where no other node can come: "
            "take it out of the hosts file, or put an IP address into `rendezvous: {address: ...}`"
        )
    if guards.port is not None:
        see = "sudo ss -ltnp" if shell == "sh" else "netstat -ano"
        sentences["port-taken"] = (
            f"port {guards.port} cannot be had on {node}: "
            f"end the program that holds it (see `{see}`), or choose another one in `rendezvous: {{port: ...}}`"
        )
    return sentences


def secrets_file_name(spec: ScriptSpec, shell: str) -> str:
    """The name of the file beside the script that holds the secrets."""
    return f"{spec.name}.env" if shell == "sh" else f"{spec.name}.env.{shell}"


_QuotingAttempt = tuple[tuple[str, ...], Callable[[], object], bool]
"""The place of a value, a function that quotes it, and whether it is a secret."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
"""The names that a script may have."""


@dataclass(frozen=True, slots=True)
class Script:
    """The files of one script, by name: the script itself, to be stored with mode 0700, and a file with the secrets if
    there are any, with mode 0600."""

    name: str
    files: Mapping[str, bytes]


def make_script(spec: ScriptSpec, shell: str) -> Script:
    """The script for `shell` (sh, bat or ps1). Raises CannotQuote for the first value that the shell cannot carry."""
    if not _FILE_NAME.match(spec.name):
        raise ValueError(f"{spec.name!r} cannot be the name of a script")
    try:
        for _, attempt, _ in _combination_checks(spec, dialect_of(shell)):
            attempt()
        return _rendered_script(spec, shell)  # quotes every value, so checking each of them before would do that twice
    except CannotQuote as refused:
        raise next(quoting_refusals(spec, shell), refused) from None


def _rendered_script(spec: ScriptSpec, shell: str) -> Script:
    """The script, with every value quoted by its template."""
    dialect = dialect_of(shell)
    secrets = {key: value for key, value in spec.environment.items() if isinstance(value, Secret)}
    name, beside = f"{spec.name}.{shell}", secrets_file_name(spec, shell)
    activation = read_activation(spec.activate, shell)
    text = _launch_template(shell).render(
        version=runbook.__version__,
        spec=spec,
        environment={key: value for key, value in spec.environment.items() if key not in secrets},
        secrets=beside if secrets else None,
        file=name,
        activation=activation,
        stops=possible_stops(spec, shell, activation),
        probe=RENDEZVOUS_PROBE,
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


def quoting_refusals(spec: ScriptSpec, shell: str) -> Iterator[CannotQuote]:
    """A refusal for everything in the spec that `shell` cannot carry, with its place. They do not contain secrets."""
    dialect = dialect_of(shell)
    for place, attempt, secret in _quoting_attempts(spec, dialect):
        try:
            attempt()
        except CannotQuote as refused:
            if secret:
                yield CannotQuote(f"a secret {refused.reason}", None, place)
            else:
                yield CannotQuote(refused.reason, refused.value, place)


def _quoting_attempts(spec: ScriptSpec, dialect: Dialect) -> Iterator[_QuotingAttempt]:
    """Everything in the spec that has to be quoted: its place, a function that quotes it, and whether it is a
    secret."""
    bound = functools.partial
    filters = dialect.filters
    for key, value in spec.environment.items():
        yield ("environment", key), bound(dialect.setting, key, _revealed_value(value)), isinstance(value, Secret)
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
    yield from _combination_checks(spec, dialect)


def _combination_checks(spec: ScriptSpec, dialect: Dialect) -> Iterator[_QuotingAttempt]:
    """The checks that quoting each value does not include: of names in `unset`, and of values in combination."""
    bound = functools.partial
    for key in (*spec.unset, *spec.unset_prefixes):
        yield ("unset", key), bound(dialect.filters["name"], key), False
    keys = [*spec.environment, *(spec.processes[0].environment if spec.processes else ())]
    yield ("environment", keys[-1] if keys else ""), bound(dialect.check_names, keys), False
    yield ("command", "0"), bound(dialect.check_command, spec.command or ()), False


def _revealed_value(value: EnvValue) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def _quoting_finalizer(literal: type[Literal]) -> Callable[[object], object]:
    """A function for jinja2 that refuses values without this shell's quoting."""

    def finalize(value: object) -> object:
        if not isinstance(value, (literal, jinja2.Undefined)):
            raise TypeError(f"the template printed {value!r} without quoting it for this shell")
        return value

    return finalize


@functools.cache
def _jinja_environment(shell: str) -> jinja2.Environment:
    """The jinja2 environment of a shell, with its quoting as filters."""
    dialect = dialect_of(shell)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.launch"),
        undefined=jinja2.StrictUndefined,
        finalize=_quoting_finalizer(dialect.literal),
        autoescape=False,  # shells are not HTML: `finalize` refuses values that were not quoted for this shell
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Ten thousand nodes have few different values, so quoted ones are cached. Secrets never pass through the filters.
    remembered = functools.lru_cache(maxsize=4096, typed=True)
    environment.filters.update({name: remembered(quote) for name, quote in dialect.filters.items()})
    return environment


def activation_lines(activate: str) -> str:
    """Lines of sh that run an activate line as a launch script does; commands after them have its environment."""
    activation = read_activation(activate, "sh")
    return _jinja_environment("sh").get_template("activate.sh.j2").render(activate=activate, activation=activation)


@functools.cache
def _launch_template(shell: str) -> jinja2.Template:
    return _jinja_environment(shell).get_template(f"launch.{shell}.j2")
