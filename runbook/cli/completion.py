"""Writes completion scripts for bash, zsh and fish from the argparse tree: they complete what the parser accepts.

The scripts are static: pressing Tab never starts Python. The template of each is `completions/SHELL.j2`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import jinja2

from runbook.cli.argument_parser import make_parser
from runbook.files.shipped_files import shipped_names
from runbook.report.standard_streams import stdout

Shell = Literal["bash", "zsh", "fish"]
ValueKind = Literal["words", "files", "folders", "playbooks", "yaml", "nothing"]

# The kind of a value, by its metavar (or dest) in capitals; anything else completes to files.
VALUE_KINDS: Mapping[str, ValueKind] = {
    "PLAYBOOK": "playbooks",
    "INV": "yaml",
    "DIR": "folders",
    **dict.fromkeys(("PATTERN", "TAGS", "STAGE", "K=V", "N", "P", "ID", "NODE", "NAME", "KEY", "HOST"), "nothing"),
    **dict.fromkeys(("JOB", "STRING", "URL", "ADDR:PORT"), "nothing"),
    **dict.fromkeys(("RUN_DIR", "OTHER_RUN_DIR"), "folders"),
}


@dataclass(frozen=True, slots=True)
class Value:
    """What may be typed at one place: values of a kind, and with `words` these; `repeats`: several of them."""

    kind: ValueKind
    words: tuple[tuple[str, str], ...] = ()  # (word, what it means)
    name: str = ""
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command; `value` is None if it takes none."""

    flags: tuple[str, ...]
    help: str
    value: Value | None
    repeats: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One parser of the tree. `path` are the words before its arguments, without the program's name."""

    path: tuple[str, ...]
    options: tuple[Option, ...]
    places: tuple[Value, ...]
    children: tuple[str, ...]

    @property
    def key(self) -> str:
        return " ".join(self.path)


def print_completion(arguments: argparse.Namespace) -> int:
    stdout.tell(completion(make_parser(), arguments.shell, shipped=shipped_names("playbooks")))
    return 0


def completion(root: argparse.ArgumentParser, shell: Shell, shipped: Sequence[str] = ()) -> str:
    """The script that teaches `shell` this parser; `shipped` are names of playbooks that come with the package."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.cli", "completions"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        identifier=_shell_identifier,
        quoted=lambda text: "'" + text.replace("'", "'\\''") + "'",  # one word for bash and zsh
        fish=lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",  # one for fish
        escaped=lambda text: re.sub(r"([:\\ ()'\"$`])", r"\\\1", text),
        bracketed=lambda text: re.sub(r"([\[\]\\])", r"\\\1", text),
    )
    prog = root.prog.split()[0]
    return templates.get_template(f"{shell}.j2").render(
        prog=prog,
        id=f"_{_shell_identifier(prog)}",
        commands=list(_completable_commands(root, ())),
        shipped=tuple(shipped),
    )


def _completable_commands(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Command]:
    options: list[Option] = []
    places: list[Value] = []
    children: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            meanings = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children.update(action.choices)
            shown = tuple((name, _help_sentence(meanings.get(name, ""))) for name in action.choices)
            places.append(Value("words", shown, "command"))
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            value = None if action.nargs == 0 else _argument_value(action)
            again = isinstance(action, argparse._AppendAction | argparse._CountAction)
            options.append(Option(tuple(action.option_strings), _help_sentence(action.help), value, again))
        else:
            places.append(_argument_value(action))
    yield Command(path, tuple(options), tuple(places), tuple(children))
    for name, child in children.items():
        yield from _completable_commands(child, (*path, name))


def _argument_value(action: argparse.Action) -> Value:
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    repeats = action.nargs in ("*", "+", argparse.REMAINDER)
    if action.choices is not None:
        return Value("words", tuple((str(choice), "") for choice in action.choices), name, repeats)
    return Value(VALUE_KINDS.get(name.upper(), "files"), (), name, repeats)


def _help_sentence(help: str | None) -> str:
    """The help on one line, without argparse's placeholders and the brackets that hold them."""
    bare = re.sub(r"\([^()]*%\(\w+\)s[^()]*\)|%\(\w+\)s", "", help or "")
    return " ".join(bare.replace("%%", "%").split())


def _shell_identifier(text: str) -> str:
    return re.sub(r"\W", "_", text, flags=re.ASCII)
