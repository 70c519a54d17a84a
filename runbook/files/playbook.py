"""Reads a playbook file into a `Playbook`: each stage is one check, shell or launch, names are unique, and templates
stay as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runbook.files.environment_values import EnvReader
from runbook.files.file_kinds import unusable_file_problems
from runbook.files.misplaced_keys import advise_check
from runbook.files.problems import PlacedProblems, in_file_order
from runbook.files.scalars import parse_seconds
from runbook.files.schema import validate_document
from runbook.files.yaml_document import Document, KeyPath, document_of
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.playbook import (
    DEFAULT_BASELINE_S,
    DEFAULT_GRACE_S,
    DEFAULT_RENDEZVOUS_TIMEOUT_S,
    Expect,
    LaunchKeyPath,
    LaunchSettings,
    Playbook,
    Stage,
    Watch,
)

T = TypeVar("T")
MAX_STAGES = 1000
BAD_NODE_KEYS = frozenset({"when_bad", "min_nodes"})  # the keys that say how a run goes on without its bad nodes


@dataclass(frozen=True, slots=True)
class ExaminedPlaybook:
    """The result of reading a file, and everything wrong with it. `draft` is the playbook with every wrong value left
    out, None when the file cannot be used at all; `wrong` holds the places of these values."""

    draft: Playbook | None
    problems: tuple[Problem, ...]
    wrong: frozenset[KeyPath] = frozenset()

    @property
    def playbook(self) -> Playbook | None:
        """The playbook, None if there is any problem."""
        return None if self.problems else self.draft


def load_playbook(
    source: str | Path | Document, *, checks: Collection[str] | None = None, environ: Mapping[str, str] | None = None
) -> Playbook:
    """The playbook of a file, or of a document that is in no file. Raises FilesWrong with every problem.

    `checks` are the ids of all checks; with None, ids are not judged. `environ` is where `{env: NAME}` in a launch's
    `env` is looked up; None means this process's own environment.
    """
    document = document_of(source)
    examined = examine_playbook(document, checks=checks, environ=environ)
    if examined.playbook is None:
        raise FilesWrong(list(examined.problems))
    return examined.playbook


def examine_playbook(
    document: Document, *, checks: Collection[str] | None = None, environ: Mapping[str, str] | None = None
) -> ExaminedPlaybook:
    """The playbook and all problems of a document, for lint and for loading alike; never raises for what is in a
    file."""
    if (fatal := unusable_file_problems(document, "playbook")) is not None:
        return ExaminedPlaybook(None, fatal)
    stages = document.mapping.get("stages")
    if isinstance(stages, list) and len(stages) > MAX_STAGES:
        message = f"there are more than {MAX_STAGES:,} stages"
        span = document.span("stages", MAX_STAGES)
        return ExaminedPlaybook(None, (*document.problems, Problem("playbook.too-many-stages", message, span)))
    judged = validate_document(document, "playbook")
    placed = PlacedProblems(document, "playbook")
    env = EnvReader(placed, os.environ if environ is None else environ)
    playbook = _PlaybookReader(placed, env, checks).playbook(judged.data)
    problems = in_file_order([*document.problems, *judged.problems, *placed.problems])
    return ExaminedPlaybook(playbook, problems, frozenset(judged.wrong | placed.wrong))


class _PlaybookReader:
    """Makes a Playbook from judged data; mistakes are reported to `placed`."""

    def __init__(self, placed: PlacedProblems, env: EnvReader, checks: Collection[str] | None) -> None:
        self._placed = placed
        self._document = placed.document
        self._env = env
        self._checks = checks

    def playbook(self, data: Mapping[str, Any]) -> Playbook:
        stages = data.get("stages") or []
        names = self._names(stages)
        for name, value in (data.get("vars") or {}).items():
            self._placed.no_secret(value, ("vars", name))
        return Playbook(
            name=data.get("name") or Path(self._document.path).stem,
            stages=tuple(self._stage(index, stage, names[index]) for index, stage in enumerate(stages) if stage),
            inventory=data.get("inventory"),
            nodes=data.get("nodes", "all"),
            vars=self._document.as_typed(data.get("vars") or {}, "vars"),
            source=self._document.path,
            when_bad=data.get("when_bad", "stop"),
            min_nodes=data.get("min_nodes"),
            min_nodes_span=self._document.span("min_nodes") if "min_nodes" in data else None,
        )

    def _names(self, stages: list[Any]) -> list[str]:
        """The name of each stage: the given name, or else the check's id, with ` 2` and so on where that is taken."""
        taken: dict[str, int] = {}
        for index, stage in enumerate(stages):
            name = (stage or {}).get("name")
            if name in taken:
                first = self._document.span("stages", taken[name], "name")
                where = f" on line {first.line}" if first else ""
                message = f"a stage named `{name}` exists{where} already"
                help = "--start-at goes by the name: give each stage its own"
                self._placed.about_value(("stages", index, "name"), "duplicate-stage", message, help)
            elif name is not None:
                taken[name] = index
        return [(stage or {}).get("name") or _free_stage_name(stage or {}, taken) for stage in stages]

    def _stage(self, index: int, stage: Mapping[str, Any], name: str) -> Stage:
        keys: KeyPath = ("stages", index)
        kind = next((kind for kind in ("check", "shell", "launch") if kind in stage), "check")
        check = stage.get("check")
        if check is not None and self._checks is not None and check not in self._checks:
            help = advise_check(check, sorted(self._checks))
            message = f"there is no check `{check}`"
            self._placed.about_value((*keys, "check"), "unknown-check", message, help)
        self._belongs(stage, keys, kind)
        arguments = stage.get("with") or {}
        spans = {argument: self._document.span(*keys, "with", argument) for argument in arguments}
        names = {argument: self._document.key_span(*keys, "with", argument) for argument in arguments}
        if "pairs" in stage:  # an argument of several checks, written as a key of the stage
            arguments = {**arguments, "pairs": stage["pairs"]}
            spans["pairs"] = self._document.span(*keys, "pairs")
            names["pairs"] = self._document.key_span(*keys, "pairs")
        return Stage(
            name=name,
            kind=kind,
            check=check,
            shell=stage.get("shell"),
            expect=self._expect(stage.get("expect") or {}, (*keys, "expect")),
            launch=self._launch(stage["launch"], (*keys, "launch")) if "launch" in stage else LaunchSettings(),
            arguments=arguments,
            when=_condition_text(stage.get("when")),
            tags=_parsed_tags(stage.get("tags")),
            timeout_s=self._seconds(stage.get("timeout"), (*keys, "timeout")),
            nodes=stage.get("nodes"),
            on_failure=stage.get("on_failure", "stop"),
            when_bad=stage.get("when_bad"),
            min_nodes=stage.get("min_nodes"),
            span=self._document.span(*keys),
            argument_spans=_known_spans(spans),
            argument_names=_known_spans(names),
            launch_spans=self._launch_spans(stage.get("launch") or {}, (*keys, "launch")),
        )

    def _belongs(self, stage: Mapping[str, Any], keys: KeyPath, kind: str) -> None:
        """Reports keys that would silently do nothing: `expect` outside of a shell stage, `with` and `pairs` outside of
        a check, BAD_NODE_KEYS keys at a launch, and most keys of `reach`, which runs first and on every node, listed or
        not.
        """
        if stage.get("check") == "reach":
            for key in stage.keys() & {
                "with",
                "pairs",
                "expect",
                "when",
                "timeout",
                "nodes",
                "on_failure",
                *BAD_NODE_KEYS,
            }:
                message = f"`{key}` does nothing here: `reach` always runs first, once and on every node"
                help = (
                    "write it above `stages:`: there it holds for reach as well"
                    if key in BAD_NODE_KEYS
                    else "remove it"
                )
                self._placed.about_key((*keys, key), "misplaced-key", message, f"{help}; reach need not be listed")
            return
        for key, owner in (("expect", "shell"), ("with", "check"), ("pairs", "check")):
            if key in stage and kind != owner:
                message = f"`{key}` belongs to a `{owner}` stage, and this is a `{kind}` stage"
                self._placed.about_key((*keys, key), "misplaced-key", message, "remove it")
        for key in stage.keys() & BAD_NODE_KEYS if kind == "launch" else ():
            message = f"`{key}` does nothing here: what a launch starts is the program's, and says nothing of its nodes"
            help = "write it at the checks before it: the launch is made for the nodes that they leave"
            self._placed.about_key((*keys, key), "misplaced-key", message, help)
        if stage.get("when_bad") == "drop" and stage.get("on_failure") == "continue":
            message = (
                "`when_bad: drop` beside `on_failure: continue`: is the run to go on with its bad nodes, or without?"
            )
            self._placed.about_key((*keys, "when_bad"), "misplaced-key", message, "remove one of the two")

    def _expect(self, given: Mapping[str, Any], keys: KeyPath) -> Expect:
        stdout = given.get("stdout")
        if stdout is not None:
            self._regex(stdout, (*keys, "stdout"))
        return Expect(int(given.get("exit", 0)), stdout)

    def _launch(self, given: Mapping[str, Any], keys: KeyPath) -> LaunchSettings:
        """The launch's settings. Words of the command are kept as typed: `1e-4`, `0644` and `1.50` reach the program
        unchanged."""
        command = tuple(
            self._document.texts.get((*keys, "command", index), word)
            for index, word in enumerate(given.get("command", []))
            if word is not None
        )
        rendezvous_s = self._seconds(
            given.get("rendezvous_timeout"), (*keys, "rendezvous_timeout"), DEFAULT_RENDEZVOUS_TIMEOUT_S
        )
        return LaunchSettings(
            command=command,
            env=self._env.read(given.get("env") or {}, (*keys, "env")),
            start_timeout_s=self._seconds(given.get("start_timeout"), (*keys, "start_timeout")),
            rendezvous_timeout_s=rendezvous_s or 0.0,
            grace_s=self._seconds(given.get("grace"), (*keys, "grace"), DEFAULT_GRACE_S) or 0.0,
            watch=self._watch(given.get("watch"), (*keys, "watch")),
            spares=tuple(given.get("spares") or ()),
            **_given_values(given, "launcher", "workdir", "retries", "detach", "barrier", "barrier_folder"),
        )

    def _watch(self, given: Mapping[str, Any] | None, keys: KeyPath) -> Watch | None:
        if given is None:
            return None
        stall, progress = given.get("stall", "auto"), given.get("progress")
        pattern = None if progress is None else self._regex(progress, (*keys, "progress"))
        if pattern and not pattern.groups:
            message = "it has no group, so that the place of the step's number is not known"
            self._placed.about_value((*keys, "progress"), "bad-regex", message, r"write for example `step (\d+)`")
            pattern = None
        return Watch(
            stall_s=None if stall == "auto" else self._seconds(stall, (*keys, "stall")),
            progress=pattern,
            baseline_s=self._seconds(given.get("baseline"), (*keys, "baseline")) or DEFAULT_BASELINE_S,
            **_given_values(given, "on_stall", "stacks"),
        )

    def _regex(self, text: str, keys: KeyPath) -> re.Pattern[str] | None:
        """The compiled pattern; None, and a problem, if the text is not a regular expression."""
        try:
            return re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            self._placed.about_value(keys, "bad-regex", f"this is not a regular expression: {error}")
            return None

    def _launch_spans(self, given: Mapping[str, Any], keys: KeyPath) -> dict[LaunchKeyPath, Span]:
        """The place of each setting of a launch. Words of the command are numbered as `_launch` numbers them: a word
        that was left out has no number."""
        words = [index for index, word in enumerate(given.get("command", [])) if word is not None]
        places: dict[LaunchKeyPath, KeyPath] = {
            ("command", number): ("command", index) for number, index in enumerate(words)
        }
        places |= {("env", name): ("env", name) for name in given.get("env") or {}}
        places |= {(key,): (key,) for key in ("launcher", "workdir", "spares") if key in given}
        return _known_spans({place: self._document.span(*keys, *inner) for place, inner in places.items()})

    def _seconds(self, value: object, keys: KeyPath, default: float | None = None) -> float | None:
        """The seconds of a duration, or `default` where none is given. A bad duration is reported, and gives 0, or None
        if there is no default."""
        if value is None:
            return default
        try:
            return parse_seconds(value)
        except ValueError as error:
            self._placed.about_value(keys, "duration", str(error))
            return None if default is None else 0.0


def _given_values(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values of those of the keys `names` that are given."""
    return {name: given[name] for name in names if name in given}


def _known_spans(spans: Mapping[T, Span | None]) -> dict[T, Span]:
    return {place: span for place, span in spans.items() if span is not None}


def _free_stage_name(stage: Mapping[str, Any], taken: dict[str, int]) -> str:
    """A free name for a stage without one; marks the name as taken."""
    plain: str = stage.get("check") or ("shell" if "shell" in stage else "launch")
    name = plain
    number = 2
    while name in taken:
        name = f"{plain} {number}"
        number += 1
    taken[name] = -1
    return name


def _condition_text(when: Any) -> str | None:
    return str(when).lower() if isinstance(when, bool) else when


def _parsed_tags(given: Any) -> tuple[str, ...]:
    items = given.split(",") if isinstance(given, str) else given or []
    return tuple(dict.fromkeys(tag.strip() for tag in items if tag and tag.strip()))


# The `launch:` of an inventory as a playbook: the checks that must pass for any job, then that launch.

PRE_LAUNCH_CHECKS = ("ping", "port", "firewall", "ibstat", "connection")
"""The checks before the launch, by id, in order."""


def has_launch(document: Document) -> bool:
    """Whether this is an inventory with a launch of its own."""
    return {"nodes", "launch"} <= document.mapping.keys()


def load_launch(
    document: Document, *, checks: Collection[str] | None = None, environ: Mapping[str, str] | None = None
) -> Playbook:
    """The playbook of an inventory's launch. Raises FilesWrong with every problem, and if there is no launch."""
    if not has_launch(document):
        message = f"{document.path} has no `launch:`, and no playbook is named"
        help = f"name one before `-i {document.path}`, or add a `launch:` with a `command:` to that file"
        raise FilesWrong([*document.problems, Problem("arguments.no-playbook", message, help=help)])
    return load_playbook(launch_document(document), checks=checks, environ=environ)


def launch_document(document: Document) -> Document:
    """The playbook of an inventory that `has_launch`, as a document; the places of its values are in the inventory.

    Mistakes elsewhere in the inventory are not among the document's problems.
    """
    data: Any = document.data
    stages: list[dict[str, Any]] = [{"check": check} for check in PRE_LAUNCH_CHECKS]
    stages.append({"launch": data["launch"]})
    top: dict[str, Any] = {"stages": stages}
    if isinstance(data.get("name"), str) and data["name"]:
        top = {"name": data["name"], **top}
    here: KeyPath = ("stages", len(PRE_LAUNCH_CHECKS), "launch")

    def moved(at: Mapping[KeyPath, T]) -> dict[KeyPath, T]:
        return {(*here, *keys[1:]): at[keys] for keys in at if keys[:1] == ("launch",)}

    launch = document.key_span("launch")
    spans = moved(document.spans)
    if launch is not None:  # the checks and the list have no place in the file: problems with them are put at `launch:`
        spans |= {(): launch, ("stages",): launch, here[:-1]: launch}
        spans |= {("stages", index): launch for index in range(len(PRE_LAUNCH_CHECKS))}
    key_spans, texts = moved(document.key_spans), moved(document.texts)
    return Document(document.path, document.text, top, spans=spans, key_spans=key_spans, texts=texts)
