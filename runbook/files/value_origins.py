"""Tells where each value of each node comes from, for `inventory explain NODE KEY` and for the places of problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runbook.files.yaml_document import Document, KeyPath
from runbook.model.errors import Span

DEEP_MERGED_KEYS = (
    "env",
    "vars",
    "ssh",
    "slurm",
    "kubernetes",
)  # mappings that merge key by key; any other key is taken whole


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that some level gives for a key. Exactly one of the candidates for a key wins.

    `level` reads `env of the inventory`, `defaults`, `group rack1`, `node`, or `-e`, which has no place.
    """

    value: object
    span: Span | None
    level: str
    wins: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """One level's settings for a node; `keys` is where they stand in the document."""

    level: str
    keys: KeyPath
    settings: Mapping[str, Any]

    def flat(self) -> Iterator[tuple[KeyPath, KeyPath, object]]:
        """Each setting as its key (`("ssh", "user")`), its place in the document, and its value."""
        for key, value in self.settings.items():
            if key in DEEP_MERGED_KEYS:
                for inner, deep_value in (value or {}).items():
                    yield (key, inner), (*self.keys, key, inner), deep_value
            else:
                yield (key,), (*self.keys, key), value


class Origins:
    """The levels of every node, and where its values come from. Answers are worked out when asked for, so that loading
    10,000 nodes does not pay for them."""

    def __init__(
        self, document: Document, layers: Mapping[str, tuple[Layer, ...]], env: Layer, extra_vars: Mapping[str, object]
    ) -> None:
        self.document = document
        self._layers = layers
        self._env = env
        self._extra_vars = extra_vars

    def keys(self, node: str) -> list[KeyPath]:
        """Every key that some level sets for the node, such as `("gpus",)` and `("ssh", "user")`."""
        found = [key for layer in self._all(node) for key, _, _ in layer.flat()]
        return list(dict.fromkeys([*found, *(("vars", name) for name in self._extra_vars)]))

    def candidates(self, node: str, key: KeyPath) -> list[Candidate]:
        """Every value for the key, the weakest first; the last one wins. Empty if no level sets the key."""
        found: list[tuple[object, Span | None, str]] = []
        for layer in self._all(node):
            for one, place, value in layer.flat():
                if one == key:
                    found.append((value, self.document.span(*place), layer.level))
        if key[:1] == ("vars",) and len(key) == 2 and key[1] in self._extra_vars:
            found.append((self._extra_vars[str(key[1])], None, "-e"))
        last = len(found) - 1
        return [Candidate(value, span, level, index == last) for index, (value, span, level) in enumerate(found)]

    def entry(self, node: str) -> KeyPath:
        """Where the node itself stands in the document: `("nodes", "gn[01-04]")`."""
        return self._layers[node][-1].keys

    def span(self, node: str, *key: str) -> Span | None:
        """The place of the value that won; None if it is not set."""
        candidates = self.candidates(node, key)
        return candidates[-1].span if candidates else None

    def _all(self, node: str) -> Iterator[Layer]:
        if node not in self._layers:
            raise KeyError(node)
        yield self._env
        yield from self._layers[node]
