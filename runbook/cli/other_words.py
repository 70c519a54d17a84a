"""What is said to people of Ansible, torchrun and Slurm below argparse's own error; their words are in
`other_words.toml`."""

from __future__ import annotations

import re

from runbook.files.suggestions import nearest
from runbook.files.toml import own_table

_CHOICE = re.compile(r"argument (?:COMMAND|ACTION|DEED): invalid choice: '([^']*)' \(choose from (.*)\).*", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)


def instead(message: str) -> str | None:
    """What to type; None where nothing is known."""
    if choice := _CHOICE.fullmatch(message):
        known = [name.strip(" '") for name in choice[2].split(",")]
        meant = _meant("commands").get(_plain(choice[1])) if "run" in known else None
        near = nearest(choice[1], known)
        return meant or (f"did you mean `{near}`?" if near else None)
    if unknown := _UNKNOWN.fullmatch(message):
        options = _meant("options")
        words = (_plain(word.partition("=")[0]) for word in unknown[1].split())
        return next((options[word] for word in words if word in options), None)
    return None


def _meant(kind: str) -> dict[str, str]:
    table = own_table("runbook.cli", "other_words.toml")[kind]
    return {word: one["write"] for one in table for word in one["for"].split()}


def _plain(word: str) -> str:
    """Short options differ in case: -k and -K."""
    return word if re.fullmatch("-[A-Za-z]", word) else word.lower().replace("_", "-")
