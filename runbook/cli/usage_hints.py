"""Says, below argparse's own error, what users of Ansible, torchrun and Slurm are to type; their words are in
`usage_hints.toml`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from runbook.files.shipped_files import YAML_SUFFIXES, load_own_table
from runbook.files.suggestions import nearest_word

_INVALID_CHOICE = re.compile(
    r"argument (?P<of>[^:]+): invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\).*", re.DOTALL
)
_UNRECOGNIZED_ARGUMENTS = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
_MISSING_COMMAND = re.compile(r"the following arguments are required: (?:COMMAND|ACTION)")
_COMMAND_METAVARS = ("COMMAND", "ACTION")


def corrected_message(message: str, parser: argparse.ArgumentParser, given: Sequence[str]) -> str:
    """The message of argparse, replaced if it hides an unknown option: of `serve --port 9000` argparse complains of a
    command 9000."""
    choice = _INVALID_CHOICE.fullmatch(message)
    if not _MISSING_COMMAND.fullmatch(message) and not (choice and choice["of"] in _COMMAND_METAVARS):
        return message
    unknown = [
        word for word in _words_before(choice["word"] if choice else None, given) if _is_unknown_option(word, parser)
    ]
    return f"unrecognized arguments: {' '.join(unknown)}" if unknown else message


def suggest_usage(message: str, parser: argparse.ArgumentParser, given: Sequence[str] = ()) -> str | None:
    """The help, what to type; None if nothing is known. `given` is what was typed after the words of `parser`."""
    if _MISSING_COMMAND.fullmatch(message):
        return f"`{parser.prog} --help` tells what each of them does: {', '.join(_subcommands(parser))}"
    if choice := _INVALID_CHOICE.fullmatch(message):
        known = [name.strip(" '") for name in choice["known"].split(",")]
        if choice["of"] in _COMMAND_METAVARS:
            return _suggest_command(choice["word"], parser, given, known)
        near = _hints_by_word("values").get(_normalized_word(choice["word"])) or nearest_word(choice["word"], known)
        return f"did you mean `{near}`?" if near in known else None
    if unknown := _UNRECOGNIZED_ARGUMENTS.fullmatch(message):
        return next(_suggest_options(unknown[1].split(), parser), None)
    return None


def _suggest_command(
    word: str, parser: argparse.ArgumentParser, given: Sequence[str], known: Sequence[str]
) -> str | None:
    behind = given[list(given).index(word) + 1 :] if word in given else []
    if word == "help" and behind[:1] and behind[0] in known:
        return f"{parser.prog} {behind[0]} --help"
    meant = _hints_by_word(_command_of_parser(parser) or "commands").get(_normalized_word(word))
    near = nearest_word(word, known)
    return meant or (f"did you mean `{near}`?" if near else None)


def _suggest_options(words: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields a help for each unknown argument for which one is known: options, and files."""
    ours = [option for option in parser._option_string_actions if option.startswith("--")]
    tables = [_hints_by_word("options", _command_of_parser(parser)), _hints_by_word("options")]
    for word in words:
        name = _normalized_word(word.partition("=")[0])
        if found := next((table[name] for table in tables if name in table), None):
            yield found
        elif name.startswith("--") and (near := nearest_word(name[2:], [option[2:] for option in ours])):
            yield f"did you mean `--{near}`?"
        elif "--inventory" in ours and PurePath(word).suffix in YAML_SUFFIXES:
            yield f"an inventory is named by -i: `-i {word}`"


def _is_unknown_option(word: str, parser: argparse.ArgumentParser) -> bool:
    ours = parser._option_string_actions
    name = word.partition("=")[0]
    if not name.startswith("-") or name == "-" or name in ours:
        return False
    return not any(option.startswith(name) for option in ours) if name.startswith("--") else name[:2] not in ours


def _words_before(word: str | None, given: Sequence[str]) -> Sequence[str]:
    return given[: list(given).index(word)] if word is not None and word in given else given


def _subcommands(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions if isinstance(action.choices, dict) for name in action.choices]


def _command_of_parser(parser: argparse.ArgumentParser) -> str:
    """The command, without the program: `run`, `agent`; empty for the program itself."""
    return " ".join(parser.prog.split()[1:2])


def _hints_by_word(kind: str, of: str | None = None) -> dict[str, str]:
    """The words of a table of `usage_hints.toml`: those of the command `of`, or those that hold everywhere."""
    table = load_own_table("runbook.cli", "usage_hints.toml").get(kind, [])
    fitting = (one for one in table if (of in one["of"].split() if "of" in one else not of))
    return {word: one["write"] for one in fitting for word in one["for"].split()}


def _normalized_word(word: str) -> str:
    """A word in lower case and with dashes; short options stay, since their case counts: -k and -K."""
    return word if re.fullmatch("-[A-Za-z]", word) else word.lower().replace("_", "-")
