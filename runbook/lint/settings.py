"""Reads the settings of lint: rules that a project ignores, and files that it leaves out.

Settings are in `.runbook-lint.yml`, or under `[tool.runbook.lint]` in pyproject.toml. For each file the nearest
settings count, from its own folder upwards. Globs are relative to the folder of the settings, and their `*` also
crosses folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from runbook.files.shipped_files import tomllib
from runbook.files.suggestions import did_you_mean
from runbook.files.yaml_document import KeyPath, iterate_scalars, mapping_problem, read_document
from runbook.lint.find_files import outside_target, real_tree_roots
from runbook.lint.findings import silencing_refusal
from runbook.model.errors import Problem, Span
from runbook.model.safe_files import is_file, open_regular_file, path_exists

YAML_FILE = ".runbook-lint.yml"
TOML_FILE = "pyproject.toml"
SETTING_KEYS = ("ignore", "exclude", "per_file")
MAX_TOML_BYTES = 1 << 20
"""Characters of a TOML file: a larger one is for another tool."""

MAX_DOTS_PER_LINE = 32
"""Dots on a line of a TOML file, outside of quotes; more take too much memory."""

SpanOfSetting = Callable[[KeyPath, str], Span]  # the place of a setting, or of a word in its value


@dataclass(frozen=True, slots=True)
class LintSettings:
    """The settings of one file. `source` is that file, empty if there are no settings; globs are relative to
    `folder`."""

    source: str = ""
    folder: str = ""
    ignore: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    per_file: Mapping[str, frozenset[str]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def excludes(self, path: str) -> bool:
        return any(self._fits(glob, path) for glob in self.exclude)

    def ignored(self, path: str) -> frozenset[str]:
        """The rules that are ignored for this file."""
        return self.ignore.union(*(ids for glob, ids in self.per_file.items() if self._fits(glob, path)))

    def _fits(self, glob: str, path: str) -> bool:
        """Whether a glob matches a file's path, its name alone, or a folder that the file lies in."""
        relative = Path(os.path.relpath(path, self.folder or os.curdir)).as_posix()
        parts = relative.split("/")
        wholes = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        wanted = glob.removeprefix("./").rstrip("/")
        return any(fnmatchcase(one, wanted) for one in (*wholes, *(parts[-1:] if "/" not in wanted else [])))


class SettingsOf:
    """The settings that hold for a file. Each folder is looked into once."""

    def __init__(self) -> None:
        self._known: dict[Path, LintSettings] = {}

    def __call__(self, path: str) -> LintSettings:
        return self._of_folder(Path(os.path.normpath(Path(path).absolute())).parent)

    def _of_folder(self, folder: Path) -> LintSettings:
        if folder not in self._known:
            found = _settings_in(str(folder))
            if found is None and folder.parent != folder:
                found = self._of_folder(folder.parent)
            self._known[folder] = found or LintSettings()
        return self._known[folder]


def _settings_in(folder: str) -> LintSettings | None:
    """The settings in this folder itself, None if it has none."""
    yaml_file, toml_file = Path(folder, YAML_FILE), Path(folder, TOML_FILE)
    toml_is_here = is_file(toml_file) and not outside_target(toml_file, real_tree_roots([str(toml_file)]))
    from_toml = _settings_from_toml(toml_file, folder) if toml_is_here else None
    if not os.path.lexists(yaml_file):
        return from_toml
    settings = _settings_from_yaml(yaml_file, folder)
    if from_toml is None:
        return settings
    message = f"{TOML_FILE} of this folder has settings as well, and these here win"
    problem = Problem("settings.two-files", message, Span(settings.source, 1, 1), "keep one of the two")
    return replace(settings, problems=(*settings.problems, problem))


def _settings_from_yaml(path: Path, folder: str) -> LintSettings:
    shown = _displayed_path(path)
    first = Span(shown, 1, 1)
    outside = outside_target(path, real_tree_roots([str(path)]))
    if outside:
        message = f"this is a link that leads out of its repository, to {outside}, and is not read"
        problem = Problem("settings.syntax", message, first, "put the file itself here")
        return LintSettings(shown, folder, problems=(problem,))
    if path_exists(path) and not is_file(path):
        problem = Problem("settings.syntax", "this is not a regular file, and is not read", first, "remove it")
        return LintSettings(shown, folder, problems=(problem,))
    document = read_document(shown)
    if document.data is None:
        if document.text and not re.sub(r"(?m)#.*$", "", document.text).strip():
            return LintSettings(shown, folder)  # all of it commented out
        return LintSettings(shown, folder, problems=document.problems)
    if not isinstance(document.data, dict):
        not_mapping = mapping_problem(document, "a file of settings")
        return LintSettings(shown, folder, problems=(not_mapping,) if not_mapping else ())

    def place(keys: KeyPath, word: str) -> Span:
        for item, value in iterate_scalars(document.data):
            if word and value == word and item[:-1] == keys:
                keys = item
        return document.key_span(*keys) or first

    return _checked_settings(document.data, place, shown, folder, document.problems)


def _settings_from_toml(path: Path, folder: str) -> LintSettings | None:
    """The settings in a pyproject.toml; None if it has no table `tool.runbook`, or is broken and does not name it."""
    shown = _displayed_path(path)
    try:
        with open_regular_file(path) as file:
            text = file.read(MAX_TOML_BYTES + 1).decode("utf-8-sig")
        data = tomllib.loads(text) if _is_cheap_toml(text) else {}
    except (OSError, UnicodeDecodeError, RecursionError):
        return None  # other tools will report it; nothing shows that it is about lint
    except ValueError as error:  # from tomllib, or from Python for a number of too many digits
        if "tool.runbook" not in text:
            return None
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        last = text.splitlines() or [""]
        span = Span(shown, int(at[1]), int(at[2])) if at else Span(shown, len(last), max(1, len(last[-1])))
        return LintSettings(shown, folder, problems=(Problem("settings.syntax", f"this is not TOML: {error}", span),))
    tool = data.get("tool")
    ours = tool.get("runbook") if isinstance(tool, dict) else None
    if not isinstance(ours, dict) or not ours:
        return None
    lines = text.splitlines()
    if "lint" not in ours:
        key = next(iter(ours))
        help = did_you_mean(key, ("lint",)) or "settings of lint stand in `[tool.runbook.lint]`"
        problem = Problem("settings.unknown-key", f"there is no `tool.runbook.{key}`", None, help)
        return LintSettings(shown, folder, problems=(replace(problem, span=_toml_span(shown, lines, (key,), "")),))
    return _checked_settings(ours["lint"], lambda keys, word: _toml_span(shown, lines, keys, word), shown, folder, ())


def _is_cheap_toml(text: str) -> bool:
    """Whether tomllib reads the text in reasonable memory: for a key `a.a.a…` it takes the square of the key's
    length."""
    bare = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "", text)
    return len(text) <= MAX_TOML_BYTES and all(line.count(".") <= MAX_DOTS_PER_LINE for line in bare.split("\n"))


def _toml_span(file: str, lines: list[str], keys: KeyPath, word: str) -> Span:
    """The place of a setting, or of a word in its value. TOML readers give no places, so the keys and the word are
    looked for in the text from the table's heading on, one after the other."""
    number = next((number for number, line in enumerate(lines) if re.search(r"tool\.runbook", line)), 0)
    span = Span(file, number + 1, 1, max(1, len(lines[number]) if lines else 1))
    for wanted in [str(key) for key in keys] + [word] * bool(word):
        for at in range(number, len(lines)):
            column = lines[at].find(wanted)
            if column >= 0 and not lines[at].lstrip().startswith("#"):
                number, span = at, Span(file, at + 1, column + 1, len(wanted))
                break
    return span


def _checked_settings(
    data: Any, place: SpanOfSetting, source: str, folder: str, problems: tuple[Problem, ...]
) -> LintSettings:
    """The settings that are in `data`, with the problems of all that is wrong in it."""
    found = _Checked(place)
    if not isinstance(data, dict):
        found.problem((), "wrong-type", "the settings are a mapping with ignore, exclude and per_file")
        data = {}
    for key in data:
        if key not in SETTING_KEYS:
            found.problem((key,), "unknown-key", f"there is no setting `{key}`", did_you_mean(key, SETTING_KEYS))
    per_file = data.get("per_file") or {}
    if not isinstance(per_file, dict):
        found.problem(("per_file",), "wrong-type", "`per_file` is a mapping from globs to lists of rules")
        per_file = {}
    return LintSettings(
        source,
        folder,
        found.rules(data.get("ignore"), ("ignore",)),
        tuple(found.texts(data.get("exclude"), ("exclude",))),
        {glob: found.rules(ids, ("per_file", glob)) for glob, ids in per_file.items()},
        (*problems, *found.problems),
    )


class _Checked:
    """Reads values of settings, and gathers the problems with them."""

    def __init__(self, place: SpanOfSetting) -> None:
        self._place = place
        self.problems: list[Problem] = []

    def problem(self, keys: KeyPath, id: str, message: str, help: str | None = None, word: str = "") -> None:
        self.problems.append(Problem(f"settings.{id}", message, self._place(keys, word), help))

    def texts(self, value: object, keys: KeyPath) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(keys, "wrong-type", f"`{keys[0]}` takes a list of texts", "for example [a, b]")
            return []
        return [str(item) for item in value]

    def rules(self, value: object, keys: KeyPath) -> frozenset[str]:
        sound = set()
        for id in self.texts(value, keys):
            if refused := silencing_refusal(id):
                self.problem(keys, *refused, id)
            else:
                sound.add(id)
        return frozenset(sound)


def _displayed_path(path: Path) -> str:
    """The path as it is shown: relative if it lies below the current folder, as paths of linted files are."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative
