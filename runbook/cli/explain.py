"""`runbook explain ID`: prints the page of a check, a cause, a rule of lint, an environment variable, a key of a file
or a word of the messages, or a shipped file itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from typing import Any

from runbook.causes.catalogue import cause_lines_for_check, cause_pages
from runbook.checks import CHECKS, check_help_page
from runbook.files.misplaced_keys import resolve_ref
from runbook.files.scalars import flow_yaml
from runbook.files.schema import load_schema
from runbook.files.shipped_files import shipped_files
from runbook.files.suggestions import nearest_word
from runbook.lint.findings import LintRule, lint_rules
from runbook.lint.variables import Variable, known_variables
from runbook.model.errors import FilesWrong
from runbook.model.grouping import values_by_key
from runbook.model.units import first_items_text
from runbook.report.standard_streams import stdout

LAUNCH_STAGE = "launch"  # `Launch.id`, without importing all that it stands on
PAGES = (*CHECKS, LAUNCH_STAGE)
"""The ids with a page of their own: every check, and the stage that starts the real job."""

CAUSES_HEADING = "\n## Causes\n"

MAX_SUGGESTED_IDS = 8  # ids that a help names
_ID_SEPARATORS = re.compile(r"[\s_.*-]+")

VARIABLE_PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "JAX_", "XLA_", "PYTORCH_", "TP_")


def explain_id(arguments: argparse.Namespace) -> int:
    return explain(arguments.id)


def explain(id: str | None) -> int:
    """Prints what is known of an id, or all ids without one; the exit code. Raises FilesWrong for an unknown id."""
    word = term_meanings().get(id.lower()) if id and id not in (*PAGES, *known_variables()) else None
    if word:
        stdout.tell(f"{id}: {word}\n")
    if id is None:
        stdout.tell(all_ids_text())
    elif id in PAGES:
        stdout.tell(stage_page(id))
    elif id in cause_pages():
        stdout.tell(cause_pages()[id].text() + checked_by_lines(id))
    elif id in lint_rules():
        stdout.tell(rule_page(lint_rules()[id]))
    elif (variable := known_variables().get(id) or known_variables().get(id.upper())) is not None:
        stdout.tell(variable_page(variable))
    elif told := _texts_about_key(id, keys := texts_by_key()):
        stdout.tell("\n\n".join(told) + "\n")
    elif id in (files := shipped_files()):
        stdout.tell(files[id].read_text(encoding="utf-8"))
    elif not word:
        message = f"there is no check, cause or lint rule {id!r}, and no variable, key or word of that name is known"
        raise FilesWrong.of("arguments.unknown-id", message, help=_unknown_id_help(id, [*keys, *files]))
    return 0


def term_meanings() -> Mapping[str, str]:
    """The terms of messages and pages, in small letters, and what each means here."""
    rows = resources.files(__package__).joinpath("words.md").read_text(encoding="utf-8").partition("|---|---|\n")[2]
    return {
        term.strip().lower(): meaning.strip() for _, term, meaning, _ in (row.split("|") for row in rows.splitlines())
    }


def _texts_about_key(typed: str, keys: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The texts about a key, which may be typed with the names of the mappings around it: `ssh.user`."""
    inside = re.compile(rf"[ .]{re.escape(typed)}: ")
    return keys.get(typed) or [one for one in keys.get(typed.rpartition(".")[2], ()) if inside.search(one)]


def _unknown_id_help(typed: str, keys: Sequence[str]) -> str:
    """The help for an unknown id: the ids that contain it as words, or else the nearest id."""
    ids = dict.fromkeys([*PAGES, *cause_pages(), *lint_rules(), *keys, *term_meanings(), *known_variables()])
    holding = [id for id in ids if _hyphenated(typed) in _hyphenated(id)]
    if len(holding) > 1:
        return f"ids with that word: {first_items_text([f'`{id}`' for id in holding], MAX_SUGGESTED_IDS)}"
    variables = known_variables() if typed.upper() == typed or typed.upper().startswith(VARIABLE_PREFIXES) else ()
    near = (
        holding[0]
        if holding
        else nearest_word(typed, [*PAGES, *cause_pages(), *lint_rules(), *variables, *keys, *term_meanings()])
    )
    return f"did you mean `{near}`?" if near else "`runbook explain` lists checks, causes and rules"


def _hyphenated(id: str) -> str:
    return f"-{_ID_SEPARATORS.sub('-', id.lower()).strip('-')}-"


def all_ids_text() -> str:
    """Every id with its one line: checks, causes, then the rules of lint, family by family."""
    lines = ["checks:", *(f"  {name}" for name in CHECKS), "", "stages:", f"  {LAUNCH_STAGE}", "", "causes:"]
    lines += [f"  {name:<34} {cause.summary}" for name, cause in cause_pages().items()]
    lines += ["", "lint rules:"]
    lines += [f"  {rule.id:<40} {rule.severity:<8} {rule.summary}" for rule in lint_rules().values()]
    lines += [
        "",
        "keys of inventories and playbooks and arguments of checks, such as gpus, when_bad or min_busbw_gbytes",
    ]
    lines += [
        f"variables: {len(known_variables())} of NCCL, PyTorch, gloo, CUDA, JAX and the launcher, such as NCCL_IB_HCA"
    ]
    lines += [f"words: {', '.join(term_meanings())}"]
    lines += [f"shipped files, as they are: {', '.join(shipped_files())}"]
    return "\n".join(lines) + "\n"


def stage_page(name: str) -> str:
    """The page of a check, which is beside its code, or of the launch, with a line for each cause that it tells."""
    launch = resources.files("runbook.jobs").joinpath(f"{LAUNCH_STAGE}.md")
    text = launch.read_text(encoding="utf-8") if name == LAUNCH_STAGE else check_help_page(name)
    return text.replace(CAUSES_HEADING, CAUSES_HEADING + "\n" + "\n".join(cause_lines_for_check(name)) + "\n")


def rule_page(rule: LintRule) -> str:
    silenced = "cannot be silenced" if rule.always else f"silenced on a line by `# noqa: {rule.id}`"
    rest = rule.text.partition("\n")[2].strip()
    return f"# {rule.id}\n\n{rule.severity}; {silenced}\n\n{rule.summary}\n" + (f"\n{rest}\n" if rest else "")


def checked_by_lines(cause: str) -> str:
    """Lines on what the checks say of this cause."""
    page = cause_pages()[cause]
    return "".join(f"\nchecked by {name}: {page.line(name)[2:]}\n" for name in PAGES if name in page.by_check)


_VARIABLE_KIND_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "switch": "0 or 1, and no words",
    "boolean": "0 or 1, or a word such as true, yes, on",
    "choice": "one of the values below",
    "set": "one or more of the values below",
    "level": "how far apart two devices may be: one of the values below, or its number",
    "per-function": "algorithms or protocols of the values below, also per function: "
    "`allreduce:ring,tree;broadcast:ring`",
    "interfaces": "names of network interfaces: a prefix, `=` for exact names, `^` for all but these, commas",
    "adapters": "names of InfiniBand adapters: a prefix, `=` for exact names, `^` for all but these, `name:port`, "
    "commas",
    "names": "names of network interfaces, whole, with commas",
    "path": "a path",
    "settings": "`name:value` pairs with commas, of the names below",
    "text": "text",
}


def variable_page(variable: Variable) -> str:
    lines = [f"{variable.name}: read by {variable.reader}", ""]
    lines += [f"{label + ':':<12} {text}" for label, text in _variable_facts(variable)]
    return "\n".join(lines) + "\n"


def _variable_facts(variable: Variable) -> Iterator[tuple[str, str]]:
    if variable.never:
        yield "exists", f"no release of {variable.reader} reads it"
    else:
        yield "value", f"{_VARIABLE_KIND_WORDS[variable.kind]}{_bounds_text(variable)}"
    if variable.choices:
        more = ", and others" if variable.open_choice else ""
        case = "; in exactly this case" if variable.exact_case else ""
        yield "values", ", ".join(variable.choices) + more + case
    if variable.kind == "set":
        yield "joined by", f"`{variable.separator}`"
    if variable.since:
        yield "since", f"{variable.reader} {variable.since}"
    if variable.deprecated:
        yield "deprecated", f"since {variable.reader} {variable.deprecated}"
    if variable.removed:
        yield "removed", f"in {variable.reader} {variable.removed}: newer releases do not read it"
    if variable.last:
        yield "last read by", f"{variable.reader} {variable.last}: newer releases do not read it"
    if variable.use:
        yield "instead", variable.use
    if variable.set_by_runbook:
        yield "set by", "runbook itself, for every rank"
    if variable.turns_off:
        yield "turns off", variable.turns_off
    if variable.leftover:
        yield (
            "debugging",
            f"{' or '.join(variable.leftover)} is for debugging" + (f": it {variable.costs}" if variable.costs else ""),
        )
    if variable.mistaken:
        meant = ", ".join(f"{wrong} (write {right})" for wrong, right in variable.mistaken.items())
        yield "mistaken", meant
    yield "read more", f"{variable.source} (what it does, and its default)"


def texts_by_key() -> dict[str, list[str]]:
    """The texts about each key of inventories and playbooks, wherever it stands, and each argument of a check, by
    key."""
    told = list(_check_argument_texts())
    for kind in ("inventory", "playbook"):
        for place, part in _schema_mappings(kind, load_schema(kind)):
            for key, rule in part["properties"].items():
                whole = resolve_ref(rule, load_schema(kind))
                examples = [f"for example {flow_yaml(one)}" for one in whole.get("examples", [])[:1]]
                title = f"{place}{key}: {whole.get('title', '')}"
                told.append((key, "\n  ".join([title, whole.get("description", ""), *examples])))
    return {key: list(dict.fromkeys(texts)) for key, texts in values_by_key(told).items()}


def _check_argument_texts() -> Iterator[tuple[str, str]]:
    for id, check in CHECKS.items():
        for field in fields(check):
            if help := field.metadata.get("help"):
                yield field.name, f"check: {id}, with: {field.name}\n  {help}"


def _schema_mappings(place: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields every mapping with known keys, after the text of where it stands: `inventory: rendezvous.`"""
    if "properties" in part:
        yield f"{place}: " if ":" not in place else f"{place}.", part
    for key, inner in part.get("properties", {}).items():
        yield from _schema_mappings(f"{place}{'.' if ':' in place else ': '}{key}", inner)
    for name, inner in part.get("$defs", {}).items():
        yield from _schema_mappings(f"{place}: {name}", inner)


def _bounds_text(variable: Variable) -> str:
    unit = f" {variable.unit}" if variable.unit else ""
    if variable.lowest is not None and variable.highest is not None:
        return f" from {variable.lowest} to {variable.highest}{unit}"
    if variable.lowest is not None:
        return f", {variable.lowest} or more{unit}"
    return f" of{unit}" if unit else ""
