"""Remedies as a type: each step says where it is done, with which commands or note. No reader has to parse a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from runbook.model.node_ranges import fold


@dataclass(frozen=True, slots=True)
class RemedyStep:
    """The part of a remedy that is done in one place: commands to be typed as they stand, or a note, which has its
    commands in backticks.

    `node`: a node's name; None: the node that has the fault; empty: where the note says, else on the reader's machine.
    """

    node: str | None
    commands: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        if not self.node:
            return self.what
        return f"on {self.node}: " + (self.note or f"`{self.what}`")

    @property
    def what(self) -> str:
        """The step without its place, in one line."""
        return self.note or " && ".join(self.commands)


class Remedy(str):
    """A remedy. The string is the text that people read; `steps` are the steps that it is made of."""

    __slots__ = ("steps",)

    steps: tuple[RemedyStep, ...]

    def __new__(cls, *steps: RemedyStep, text: str | None = None) -> Remedy:
        one = super().__new__(cls, "; ".join(map(str, steps)) if text is None else text)
        one.steps = steps
        return one

    def __getnewargs__(self) -> tuple[RemedyStep, ...]:  # type: ignore[override]
        return self.steps

    @classmethod
    def run(cls, *commands: str, node: str | None = None) -> Remedy:
        """A remedy of commands, one after the other, on one node."""
        return cls(RemedyStep(node, commands))

    @classmethod
    def note(cls, text: str, *, node: str | None = "") -> Remedy:
        """A remedy that is one sentence."""
        return cls(RemedyStep(node, (), text))

    @classmethod
    def together(cls, remedies: Iterable[str]) -> Remedy:
        """One remedy with the steps of all: no step or command twice, the commands for one node in one step. A plain
        text is taken as a command for the node that has the fault."""
        steps: list[RemedyStep] = []
        for remedy in remedies:
            for step in remedy.steps if isinstance(remedy, Remedy) else (RemedyStep(None, (remedy,)),):
                if step in steps:
                    continue
                same = next((one for one in steps if one.node == step.node and one.commands and step.commands), None)
                if same is None:
                    steps.append(step)
                else:
                    commands = tuple(dict.fromkeys((*same.commands, *step.commands)))
                    steps[steps.index(same)] = replace(same, commands=commands)
        return cls(*steps)

    @property
    def is_command(self) -> bool:
        """Whether every step is commands, which stay as they are when the remedy is shown for several nodes."""
        return all(step.commands for step in self.steps)

    def placed(self, nodes: Iterable[str]) -> Iterator[tuple[str, RemedyStep]]:
        """(place, step) for each step; the place is a text, empty for the reader's machine. `nodes` have the fault;
        give none if they cannot be reached."""
        for step in self.steps:
            yield (fold(nodes) if step.commands else "") if step.node is None else step.node, step

    def typed(self, node: str) -> Iterator[tuple[str, str]]:
        """(node, command) for every command that is typed on a node; `node` has the fault."""
        for step in self.steps:
            if where := node if step.node is None else step.node:
                yield from ((where, command) for command in step.commands)

    def changed(self, change: Callable[[str], str]) -> Remedy:
        """The remedy with `change` applied to every node's name and every note; commands stay as they are."""
        return Remedy(
            *(replace(step, node=step.node and change(step.node), note=change(step.note)) for step in self.steps)
        )
