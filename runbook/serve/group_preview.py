"""What a group's text means, before it is saved or after: its ranks, their environments, and the findings of lint."""

from __future__ import annotations

import difflib
import io
import secrets
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from runbook.checks import CHECKS
from runbook.collect.scrub import secret_text_spans
from runbook.engine.plan import Choice, Plan, make_plan, plan_with_spares
from runbook.engine.scripts import node_files
from runbook.files.environment_values import AnyVariable
from runbook.files.inventory import examine_inventory, with_shell
from runbook.files.playbook import examine_playbook, has_launch, launch_document
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import line_starts, parse_document
from runbook.launch.launchers import launch_spec
from runbook.launch.ranks import rank_layout
from runbook.launch.script import LAUNCH_SCRIPT_NAME
from runbook.lint.redaction import RedactedProblems, secret_spans, secrets_in
from runbook.lint.run import lint
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory
from runbook.model.playbook import NO_PLAYBOOK
from runbook.model.redact import SECRET_MASK, Redactor, merged_places, text_with_replacements
from runbook.model.secrets import PRIVATE_KEY, Secret, is_secret_value, secret_kind

DRAFT_PREFIX = ".lint-"
"""The prefix of the temporary folders in DATA in which lint reads a text; a server that was killed may leave one."""


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding of lint, for a page: `severity` is error or warning."""

    severity: str
    rule: str
    line: int
    column: int
    message: str
    help: str


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank. `worker` is its node's name and its number there, as in gn6-0; `device` is a GPU's index, None for a CPU
    rank."""

    worker: str
    node: str
    rank: int
    local_rank: int
    node_rank: int
    device: int | None


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a group's text. If no ranks can be assigned, `ranks` is empty, and `why` gives the reason. `where`
    is the address and port that every rank dials.

    `environments` are the variables of each rank, by its number, with *** for every secret. `nodes` have ranks;
    `spares` have none until a node fails. `by_agent`: at least one node is reached by an agent.
    """

    ranks: tuple[RankRow, ...] = ()
    where: str = ""
    backend: str = ""
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    launcher: str = "direct"
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    why: str = ""
    by_agent: bool = False

    @property
    def world_size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Linted:
    """The findings of lint about a text, and the text as people may see it (`shown`). `hidden` has the text's secrets
    by their placeholders in `shown`.

    `closed` says why nothing of the text can be shown; empty if it can.
    """

    findings: list[ShownFinding]
    shown: str
    hidden: Mapping[str, str]
    closed: str = ""

    @property
    def errors(self) -> list[ShownFinding]:
        return [one for one in self.findings if one.severity == "error"]


def lint_group_text(file: Path, text: str) -> Linted:
    """What `runbook lint` says of a group's file, DATA/groups/NAME.yml, if it has this text. Secrets are hidden even if
    the rules about them are silenced."""
    with tempfile.TemporaryDirectory(prefix=DRAFT_PREFIX, dir=file.parent.parent) as folder:  # it may hold secrets
        path = Path(folder, file.name)
        path.write_text(text, encoding="utf-8", newline="")
        try:
            findings = [_shown_finding(one.rule.severity, one.problem) for one in lint([str(path)]).findings]
        except FilesWrong as wrong:
            findings = [_shown_finding("error", problem) for problem in wrong.problems]
    if PRIVATE_KEY.search(text):
        return Linted(
            findings, "", {}, "the file holds a private key, so nothing of it is shown here: take it out by hand"
        )
    hidden = _hide_secrets(text)
    if hidden is None:
        why = "the file holds secrets in plain text that cannot all be hidden: put `{env: NAME}` there by hand"
        return Linted(findings, "", {}, why)
    return Linted(findings, *hidden)


def _hide_secrets(text: str) -> tuple[str, dict[str, str]] | None:
    """The text with a placeholder for each secret, and the secret that each placeholder stands for. None if not all can
    be hidden: a secret is written over several lines, or stands in a second place."""
    document = parse_document(text, "")
    starts = line_starts(text)
    found = [(starts[span.line - 1] + span.column - 1, span.length) for span in secret_spans(document)]
    places = merged_places((start, start + length) for start, length in found)
    if document.data is None:  # without keys that name secrets, everything that looks like one is hidden
        places = merged_places([*places, *secret_text_spans(text)])
    hidden = {f"hidden-secret-{number}": text[start:end] for number, (start, end) in enumerate(places, 1)}
    shown = text_with_replacements(text, zip(places, hidden, strict=True))
    rest = parse_document(text_with_replacements(text, ((place, "redacted") for place in places)), "")
    of_lines = document.data is not None and (rest.data is None or secret_spans(rest))
    return None if of_lines or any(secret in shown for secret in hidden.values()) else (shown, hidden)


def restore_secrets(text: str, hidden: Mapping[str, str]) -> str:
    """A text that a person made from the `shown` one, with the secrets put back for their placeholders."""
    for stand_in in sorted(hidden, key=len, reverse=True):
        text = text.replace(stand_in, hidden[stand_in])
    return text


def _shown_finding(severity: str, problem: Problem) -> ShownFinding:
    line, column = (problem.span.line, problem.span.column) if problem.span else (1, 1)
    return ShownFinding(severity, problem.id, line, column, problem.message, problem.help or "")


def group_meaning(path: Path, text: str) -> Meaning:
    """The meaning of a group's text; `why` says what is wrong in it. Never raises, whatever the text holds."""
    try:
        plan, origins = _plan_of_text(path, text)
        return _meaning_of_plan(plan, secrets_in(origins.document))
    except FilesWrong as wrong:
        problem = RedactedProblems(wrong.problems[:1], lambda _file: text.split("\n")).problems[0]
        place = f" (line {problem.span.line})" if problem.span else ""
        return Meaning(why=f"{problem.message}{place}")


def _plan_of_text(path: Path, text: str) -> tuple[Plan, Origins]:
    """The plan that a group's text gives, and where its values come from. Raises FilesWrong."""
    document = parse_document(text, str(path))
    examined = examine_inventory(document, environ=PLACEHOLDER_ENVIRONMENT)
    if examined.inventory is None or examined.origins is None:
        raise FilesWrong(list(examined.problems))
    return _plan_of_inventory(examined.inventory, examined.origins), examined.origins


def _plan_of_inventory(inventory: Inventory, origins: Origins) -> Plan:
    """The plan for the launch in a group's file; without a launch, a plan with no stages. Raises FilesWrong."""
    if not has_launch(origins.document):
        return Plan(NO_PLAYBOOK, inventory, ())
    launch = examine_playbook(launch_document(origins.document), checks=CHECKS, environ=PLACEHOLDER_ENVIRONMENT)
    if launch.playbook is None:
        raise FilesWrong(list(launch.problems))
    return make_plan(launch.playbook, inventory, Choice())


def _meaning_of_plan(plan: Plan, in_plain_text: Sequence[Secret]) -> Meaning:
    launch = plan.launch
    job, inventory = (launch.check.user_job, launch.inventory) if launch else (None, plan.inventory)
    by_node = rank_layout(inventory)
    redactor = Redactor([*plan.secrets, *in_plain_text])
    environments: dict[int, dict[str, str]] = {}
    command: tuple[str, ...] = ()
    for name, node_ranks in by_node.by_node.items():
        spec = launch_spec(by_node, node_ranks, job, name=LAUNCH_SCRIPT_NAME, made_from=plan.sources)
        shared = {key: _masked_value(key, value, redactor) for key, value in spec.environment.items()}
        of_processes = {process.local_rank: process.environment for process in spec.processes}
        for rank in node_ranks.ranks:
            own = of_processes.get(rank.local_rank) if job is None or job.starts_each else None
            variables = own if own is not None else {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank)}
            environments[rank.rank] = {**shared, **variables}
        if job is not None and not command:
            command = tuple(redactor.text(word) for word in job.programs[name].command)
    rows = tuple(
        RankRow(f"{rank.node}-{rank.local_rank}", rank.node, rank.rank, rank.local_rank, rank.node_rank, rank.device)
        for rank in by_node.ranks
    )
    rendezvous = inventory.rendezvous
    return Meaning(
        ranks=rows,
        where=f"{by_node.address}:{rendezvous.port}",
        backend=rendezvous.backend,
        environments=environments,
        command=command,
        launcher=job.launch.launcher if job else "direct",
        nodes=tuple(by_node.by_node),
        spares=launch.check.spares if launch else (),
        by_agent=any(node.connection == "agent" for node in plan.inventory.nodes),
    )


@lru_cache(maxsize=256)
def assigned_ranks(path: Path, text: str, took_over: tuple[tuple[str, str], ...]) -> Mapping[str, frozenset[int]]:
    """The ranks of each node, by its name, in a run of this text. `took_over` are the spares that have come, each with
    the node whose place it took. Empty if no ranks can be assigned."""
    try:
        plan, _ = _plan_of_text(path, text)
        if took_over and plan.whole is not None:
            plan = plan_with_spares(plan, [gone for _, gone in took_over], [spare for spare, _ in took_over])
        by_node = rank_layout(plan.launch.inventory if plan.launch else plan.inventory).by_node
    except FilesWrong:
        return {}
    return {name: frozenset(rank.rank for rank in mine.ranks) for name, mine in by_node.items()}


def _masked_value(name: str, value: object, redactor: Redactor) -> str:
    """The value of a variable as a page shows it. Secrets in plain text are hidden as well: no browser needs them."""
    if isinstance(value, Secret) or (secret_kind(name) is not None and is_secret_value(name, str(value))):
        return SECRET_MASK
    return redactor.text(str(value))


def launch_scripts(path: Path, text: str, shell: str) -> dict[str, bytes]:
    """The launch script of every node, by its path, as `gn6/launch.sh`. No script has a secret in it. Raises
    FilesWrong.

    Where an environment has secrets, a script reads them from a file beside it, which only `runbook render` on the
    command line writes.
    """
    try:
        plan, origins = _plan_of_text(path, text)
    except FilesWrong as wrong:  # what it quotes of the file may be a secret
        raise FilesWrong(RedactedProblems(wrong.problems[:1], lambda _file: text.split("\n")).problems) from None
    if plain := secret_spans(origins.document):
        message = f"the file holds a secret in plain text on line {plain[0].line}, which a script would carry"
        raise FilesWrong.of("secret.value", message, help="write `{env: NAME}` there")
    inventory = with_shell(plan.inventory, origins, shell)
    found: dict[str, bytes] = {}
    for one in node_files(_plan_of_inventory(inventory, origins), origins):
        for name, file in one.files.items():
            if not file.secret and not has_placeholder(file.data) and name == one.launch:
                found[f"{one.node.name}/{name}"] = file.data
    return found


def zip_archive(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of these files; scripts may be executed."""
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                about = zipfile.ZipInfo(name)
                about.external_attr = 0o700 << 16
                archive.writestr(about, data, zipfile.ZIP_DEFLATED)
        return out.getvalue()


def group_diff_lines(name: str, before: str, after: str) -> list[str]:
    """The lines of a unified diff between two texts of a group; none if nothing differs."""
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, f"{name}.yml", f"{name}.yml (changed)", lineterm=""))


def new_errors(before: list[ShownFinding], after: list[ShownFinding]) -> list[ShownFinding]:
    """The errors that a change adds. An error with the same rule and message as one before is not new."""
    known = {(one.rule, one.message) for one in before}
    return [one for one in after if one.severity == "error" and (one.rule, one.message) not in known]


_PLACEHOLDER_WORD = secrets.token_hex(12)


PLACEHOLDER_ENVIRONMENT = AnyVariable(f"secret-{_PLACEHOLDER_WORD}")
"""An environment in which every variable is set to a text that no file contains, so that it can be found in any
output."""


def has_placeholder(data: bytes) -> bool:
    """Whether a placeholder, and so a secret in its place, is in the data."""
    return _PLACEHOLDER_WORD.encode() in data
