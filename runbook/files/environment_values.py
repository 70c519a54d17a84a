"""Reads environment variables as files give them: the text that was typed, or a secret from this machine's
environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from runbook.files.problems import PlacedProblems, line_break_help
from runbook.files.yaml_document import KeyPath
from runbook.model.inventory import EnvValue
from runbook.model.secrets import Secret

UNQUOTABLE_CHARACTER = re.compile("[\0\r\n\ud800-\udfff]")  # characters that no shell can carry on one line of a script
HOLDS_UNQUOTABLE = "holds a line break or a character that no shell can carry"


class EnvReader:
    """Reads the `env:` blocks of one document; each value is looked at once, however many nodes share it."""

    def __init__(self, placed: PlacedProblems, environ: Mapping[str, str]) -> None:
        self._placed = placed
        self._environ = environ
        self._known: dict[KeyPath, EnvValue | None] = {}

    def read(self, block: Mapping[str, object], keys: KeyPath) -> dict[str, EnvValue]:
        found = {name: self.value(value, (*keys, name)) for name, value in block.items()}
        return {name: value for name, value in found.items() if value is not None}

    def value(self, value: object, keys: KeyPath) -> EnvValue | None:
        """The text or the secret of one variable; None after a problem."""
        if keys not in self._known:
            self._known[keys] = self._secret(value, keys) if isinstance(value, dict) else self._text(value, keys)
        return self._known[keys]

    def _text(self, value: object, keys: KeyPath) -> str | None:
        text = self._placed.document.texts.get(keys, value)
        if not isinstance(text, str):
            return None
        if UNQUOTABLE_CHARACTER.search(text):
            message = f"the value of `{keys[-1]}` {HOLDS_UNQUOTABLE}"
            self._placed.about_value(keys, "line-break", message, line_break_help(self._placed.document, keys))
        return text

    def _secret(self, value: dict[str, object], keys: KeyPath) -> Secret | None:
        """The secret that `{env: NAME}` stands for; None, and a problem, if the variable is not set here."""
        if "env" not in value:
            return None
        name = str(value["env"])
        try:
            found = self._environ[name]
        except KeyError:
            message = f"the environment variable `{name}` is not set here"
            help = f"export {name}=… before you start runbook"
            self._placed.about_value((*keys, "env"), "missing-variable", message, help)
            return None
        if UNQUOTABLE_CHARACTER.search(found):
            message = f"the environment variable `{name}` {HOLDS_UNQUOTABLE}"
            self._placed.about_value((*keys, "env"), "line-break", message)
        return Secret(found, f"the environment variable {name}")


class AnyVariable(dict[str, str]):
    """An environment in which every variable is set, those that are not in `known` to the text `otherwise`. It is for
    commands that examine files and show no values."""

    def __init__(self, otherwise: str, known: Mapping[str, str] | None = None) -> None:
        super().__init__(known or {})
        self._otherwise = otherwise

    def __missing__(self, _name: str) -> str:
        return self._otherwise

    @classmethod
    def here(cls) -> AnyVariable:
        """The variables of this process; a variable that is not set, or that no shell can carry, is empty text."""
        return cls("", {name: text for name, text in os.environ.items() if not UNQUOTABLE_CHARACTER.search(text)})
