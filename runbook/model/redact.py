"""Secrets out of everything that is shown or kept: one redactor, given every secret of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from runbook.model.secret import Secret

T = TypeVar("T")

SHORTEST = 4
"""Shorter values are not looked for in text: `1` or `on` would turn every other word into stars."""


class Redactor:
    """Replaces each secret's text by `***`, in strings and in whatever holds strings."""

    def __init__(self, values: Iterable[object]) -> None:
        texts = {value.reveal() for value in values if isinstance(value, Secret)}
        # The longest first: one secret may be part of another.
        self._texts = sorted((text for text in texts if len(text) >= SHORTEST), key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def text(self, text: str) -> str:
        for secret in self._texts:
            text = text.replace(secret, "***")
        return text

    def anything(self, value: T) -> T:
        """The same value with every string in it redacted: dataclasses, mappings and sequences are gone through."""
        return self._any(value) if self._texts else value

    def _any(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self.text(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: self._any(getattr(value, field.name)) for field in fields(value)})
        if isinstance(value, dict):
            return {self._any(key): self._any(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._any(item) for item in value)
        return value
