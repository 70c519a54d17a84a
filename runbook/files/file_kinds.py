"""Tells what kind of file a text is: an inventory or a playbook of runbook, a file of Ansible, MPI or Slurm, a program,
a manifest of Kubernetes or an encrypted file; and what to do where another kind is wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from runbook.files.node_sets import ANSIBLE_RANGE
from runbook.files.problems import NumberedLines
from runbook.files.schema import load_schema
from runbook.files.suggestions import nearest_word
from runbook.files.yaml_document import VAULT_HELP, Document, mapping_problem, parse_document
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Problem, Span

FileKind = Literal["inventory", "playbook"]

INVENTORY, PLAYBOOK = "an inventory", "a playbook"
ANSIBLE_INVENTORY, ANSIBLE_PLAYBOOK, ANSIBLE_TASKS = "an Ansible inventory", "an Ansible playbook", "Ansible tasks"
HOSTFILE, HOST_LIST = "a hostfile", "a host list"

_ANSIBLE_PLAY_KEYS = {
    "tasks",
    "roles",
    "pre_tasks",
    "post_tasks",
    "handlers",
    "gather_facts",
    "vars_files",
    "import_playbook",
}
_ANSIBLE_TASK_KEYS = {
    *("ansible.builtin", "action", "local_action", "block", "rescue", "always", "register", "notify", "become", "args"),
    *("become_user", "delegate_to", "run_once", "changed_when", "failed_when", "ignore_errors", "loop", "no_log"),
    *("import_tasks", "include_tasks", "import_role", "include_role", "set_fact", "command", "copy", "template"),
    *("apt", "dnf", "yum", "package", "pip", "service", "systemd", "user", "file", "lineinfile", "debug", "setup"),
}
_ANSIBLE_GROUP_KEYS = {"hosts", "vars", "children"}
_ANSIBLE_LINE = re.compile(r"\sansible_\w+ *=|\[\w*:\w+\]")
_INI_LINE = re.compile(r"\A(?:\[[^\[\]\s,]+\][ \t]*(?:[#;].*)?$|\S.*\sansible_\w+ *=)")


def kind_by_keys(data: object) -> str | None:
    """The kind of parsed data, by its keys: one of the constants above; None if the keys do not decide."""
    if isinstance(data, list):
        items = [item for item in data if isinstance(item, Mapping)]
        if any("hosts" in item or not _ANSIBLE_PLAY_KEYS.isdisjoint(item) for item in items):
            return ANSIBLE_PLAYBOOK
        if any(str(key).partition(".")[0] == "ansible" or key in _ANSIBLE_TASK_KEYS for item in items for key in item):
            return ANSIBLE_TASKS
        return None
    if not isinstance(data, Mapping):
        return None
    stages, nodes = data.get("stages"), data.get("nodes")
    if isinstance(nodes, Mapping) and "stages" not in data:
        return INVENTORY
    if isinstance(stages, list) and not isinstance(nodes, Mapping):
        return PLAYBOOK
    if stages is not None or isinstance(nodes, Mapping):
        return None
    if not _ANSIBLE_PLAY_KEYS.isdisjoint(data):
        return ANSIBLE_PLAYBOOK
    return ANSIBLE_INVENTORY if _is_ansible_inventory(data) else None


def _is_ansible_inventory(data: Mapping[str, Any]) -> bool:
    """Whether the data has Ansible's group `all`, or holds only groups, one of them with hosts or children. `_meta`,
    which ansible-inventory prints, does not count."""
    groups = {name: group for name, group in data.items() if name != "_meta"}
    if not _ANSIBLE_GROUP_KEYS.isdisjoint(groups.get("all") or () if isinstance(groups.get("all"), Mapping) else ()):
        return True
    shaped = all(
        group is None or (isinstance(group, Mapping) and group.keys() <= _ANSIBLE_GROUP_KEYS)
        for group in groups.values()
    )
    return shaped and any(group and not {"hosts", "children"}.isdisjoint(group) for group in groups.values())


def wrong_kind_problem(document: Document, wanted: FileKind | None) -> Problem | None:
    """The one problem reported for a file that is clearly of another kind than the wanted one; None for other files.

    `wanted` is None for lint, which takes both.
    """
    foreign = foreign_file(document)
    what = foreign.what if foreign else _detected_kind(document, wanted)
    if what is None or what == (INVENTORY if wanted == "inventory" else PLAYBOOK):
        return None
    if wanted is None and what in (INVENTORY, PLAYBOOK):
        return None
    owner = " of runbook" if what in (INVENTORY, PLAYBOOK) else ""
    message = f"this is {what}{owner}, and {INVENTORY if wanted == 'inventory' else PLAYBOOK} is wanted"
    if wanted is None or not owner:
        message = f"this is {what}, and neither an inventory nor a playbook of runbook"
    id = "yaml.not-a-mapping" if wanted is not None and isinstance(document.data, list) else "file.kind"
    return Problem(
        id, message, _first_line_span(document), foreign.help if foreign else _wrong_kind_help(what, document)
    )


def unusable_file_problems(document: Document, wanted: FileKind) -> tuple[Problem, ...] | None:
    """All problems of a file that is of another kind or holds no mapping; None for a file that can be examined."""
    if (other := wrong_kind_problem(document, wanted)) is not None:
        return (other,)
    if document.data is None:
        return document.problems
    not_mapping = mapping_problem(document, INVENTORY if wanted == "inventory" else PLAYBOOK)
    return None if not_mapping is None else (*document.problems, not_mapping)


def _detected_kind(document: Document, wanted: FileKind | None) -> str | None:
    if not isinstance(document.data, Mapping) and _is_ini(document):
        return ANSIBLE_INVENTORY
    if isinstance(document.data, str) and wanted != "playbook":
        return _kind_of_plain_text(document)
    return kind_by_keys(document.data)


def _is_ini(document: Document) -> bool:
    """Whether the first line that says something is one of Ansible's own format: a section, or a host with settings."""
    number = _first_content_line(document)
    return number is not None and _INI_LINE.match(document.lines[number - 1]) is not None


def _kind_of_plain_text(document: Document) -> str | None:
    """The kind of a text that YAML reads as one scalar: it may be a list of hosts. None if it is of no known kind."""
    kind = foreign_kind_or_none(document.text, document.path)
    if kind == "slurm":
        return HOST_LIST if re.search("[0-9]", document.text) else None
    if kind == "ansible":
        return ANSIBLE_INVENTORY if _ANSIBLE_LINE.search(document.text) else None
    return HOSTFILE if kind == "hostfile" else None


def _first_line_span(document: Document) -> Span:
    span = document.span()
    if span is not None:
        return span
    number = _first_content_line(document) or 1
    return Span(document.path, number, 1, max(1, len(document.lines[number - 1].rstrip())))


def _first_content_line(document: Document) -> int | None:
    """The number of the first line that is neither blank nor a comment, from 1."""
    words = enumerate(map(str.lstrip, document.lines), 1)
    return next((number for number, line in words if line and line[0] not in "#;"), None)


def _wrong_kind_help(what: str, document: Document) -> str:
    """The help for a file of the known kind `what` where another kind is wanted."""
    file = document.path
    if what == INVENTORY:
        return f"name a playbook, and this file after -i: runbook run PLAYBOOK -i {file}"
    if what == PLAYBOOK:
        return f"an inventory has `nodes:` with a mapping; this file is for: runbook run {file} -i INVENTORY"
    if what == ANSIBLE_PLAYBOOK:
        no_list = "a playbook is one mapping, no list: " * isinstance(document.data, list)
        words = "`hosts:` is `nodes:`, `tasks:` is `stages:`, and a stage is a `check:`, a `shell:` or a `launch:`"
        return f"here {no_list}{words}"
    if what == ANSIBLE_TASKS:
        return "here tasks are `stages:` at the left margin, and each is a `check:`, a `shell:` or a `launch:`"
    out = f"{PurePath(file).stem}.runbook.yml"
    return f"make an inventory of runbook from it: runbook inventory import {file} --out {out}"


# Whether a file is an inventory of ours, a playbook of ours, or neither: by its data, else by its text and its folder.

_MODELINE = re.compile(
    r"^[ \t]*#[ \t]*yaml-language-server:[ \t]*\$schema=\S*(inventory|playbook)\.schema\.json", re.MULTILINE
)
_KIND_BY_FOLDER: Mapping[str, FileKind] = {"inventories": "inventory", "playbooks": "playbook"}
_KIND_BY_FOREIGN_KEY: Mapping[str, FileKind] = {
    "node": "inventory",
    "hosts": "inventory",
    "host": "inventory",
    "stage": "playbook",
    "steps": "playbook",
    "checks": "playbook",
}
"""What people write instead of `nodes` and `stages`."""


def own_file_kind(document: Document, *, named: bool, folders: Sequence[str] = ()) -> FileKind | None:
    """Whether a file is an inventory or a playbook of runbook; None if it is neither. `named`: the user named this very
    file, so anything in it that looks like ours decides. `folders`: the names of the folders that it lies in, as far as
    they are the project's."""
    marked = _MODELINE.search(document.text)
    if marked:
        return "playbook" if marked[1] == "playbook" else "inventory"
    folder = next((_KIND_BY_FOLDER[part] for part in reversed(folders) if part in _KIND_BY_FOLDER), None)
    kind = _kind_by_data(document.data, sure=named or folder is not None) if document.data is not None else None
    if document.data is None:
        kind = _kind_by_text(document.text)
    return kind or folder


def _kind_by_data(data: object, *, sure: bool) -> FileKind | None:
    """The kind of parsed data, by its keys. With `sure` the file is meant to be one of ours."""
    if isinstance(data, list):
        return "playbook" if any(_is_stage(item) for item in data) else None
    if not isinstance(data, dict):
        return None
    if not sure and kind_by_keys(data) not in (None, INVENTORY, PLAYBOOK):
        return None  # a file of Ansible that lies among ours
    stages, nodes = data.get("stages"), data.get("nodes")
    if isinstance(stages, list) and any(_is_stage(item) for item in stages):
        return "playbook"
    if isinstance(nodes, dict) and "stages" not in data:
        return "inventory"
    if not sure and not _has_mostly_our_keys(data):
        return None
    if "stages" in data:
        return "playbook"
    if data.keys() <= {"nodes", "name"}:
        return "inventory"  # whatever stands below `nodes:`
    kinds: list[FileKind] = [kind for key in data if (kind := _kind_of_key(key)) is not None]
    if not kinds and "nodes" in data and not isinstance(nodes, str):  # a playbook's `nodes:` is a pattern
        return "inventory"
    return max(kinds, key=kinds.count, default=None)


def _is_stage(item: object) -> bool:
    return isinstance(item, dict) and not item.keys().isdisjoint(("check", "shell", "launch"))


def _has_mostly_our_keys(data: Mapping[str, Any]) -> bool:
    """Whether at least half of the keys are ours or nearly so: files of GitLab have `stages` as well, and files of kind
    (Kubernetes) have `nodes`."""
    known = _schema_keys("inventory") | _schema_keys("playbook")
    return 2 * sum(key in known or _kind_of_key(key) is not None for key in data) >= len(data)


def _kind_of_key(key: str) -> FileKind | None:
    """The kind of file that has this key, if the other kind has not; a key that is nearly `nodes` or `stages` counts as
    that key."""
    inventory, playbook = _schema_keys("inventory"), _schema_keys("playbook")
    if key in inventory ^ playbook:
        return "inventory" if key in inventory else "playbook"
    if key in inventory:
        return None
    near = nearest_word(key, ("nodes", "stages", "rendezvous"))
    return _KIND_BY_FOREIGN_KEY.get(key) or (None if near is None else "playbook" if near == "stages" else "inventory")


def _schema_keys(kind: FileKind) -> set[str]:
    return set(load_schema(kind)["properties"])


def _kind_by_text(text: str) -> FileKind | None:
    """The kind of a file that is not valid YAML, by the first `stages:` or `nodes:` at the left margin."""
    found = re.search(r"^(stages|nodes)[ \t]*:", text, re.MULTILINE)
    return None if found is None else "playbook" if found[1] == "stages" else "inventory"


# Inventories of other programs: which kind a text is, or why that cannot be decided.

_SECTION = re.compile(r"\[[^\[\]\s]+\]\s*(#.*)?")
_SLOTS_LINE = re.compile(r"\A\S+(\s+(slots|count|cpu|max[_-]slots|slots[_-]max|user|username|ifname)\s*=\s*\S+)+")
_HOST_COLON_SLOTS = re.compile(r"\A[^\s:=]+:(?P<slots>[0-9]{1,5})")
_HOST_WORD = re.compile(r"[A-Za-z0-9_.,@\[\]:-]+")
_HOST_LINE_PATTERNS = (_SLOTS_LINE, _HOST_COLON_SLOTS, _HOST_WORD)
_YAML_KEY = re.compile(r"""(---|(- +)?["']?[\w.-]+["']?:)(\s.*)?""")
_MAX_SLOTS = 256  # `host:8` has slots; `host:2222` may well have a port


def foreign_kind_or_none(text: str, file: str) -> str | None:
    """`hostfile`, `ansible` or `slurm`; None for a text that is none of them, that would have to be run, or for which
    it cannot be decided."""
    try:
        refuse_unreadable(text, file)
        return foreign_kind(text, file)
    except FilesWrong:
        return None


def ansible_import_command(file: str) -> str:
    """The command line by which Ansible itself reads `file`, and runbook imports the result."""
    return f"ansible-inventory -i {shell_word(file)} --list --yaml | runbook inventory import -"


def refuse_unreadable(text: str, file: str) -> None:
    """Raises FilesWrong for a text that would have to be run or decrypted first, and for one without any host."""
    if text.startswith("#!"):
        message = "this is a program, and an import runs nothing"
        help = f"run it yourself: {ansible_import_command(file)}"
        raise NumberedLines(text, file).wrong(1, "", "program", message, help)
    if text.startswith("$ANSIBLE_VAULT"):
        help = f"ansible-vault view {file} | runbook inventory import -"
        raise NumberedLines(text, file).wrong(1, "", "vault", "this file is encrypted with Ansible Vault", help)
    if not _content_lines(text):
        raise FilesWrong.of("import.empty", f"{file} holds no host")


def _content_lines(text: str) -> list[tuple[int, str]]:
    """The lines that say something, with their numbers from 1, and without comments."""
    numbered = ((number, line.partition(" #")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and line[0] not in "#;"]


def is_yaml(text: str, file: str) -> bool:
    lines = [line for _, line in _content_lines(text)]
    if lines[0].startswith("{") or _YAML_KEY.fullmatch(lines[0]):
        return True
    hosts = _INI_LINE.match(lines[0]) or all(
        any(shape.fullmatch(line) for shape in _HOST_LINE_PATTERNS) for line in lines
    )
    return not hosts and file.endswith((".yml", ".yaml", ".json"))  # people give their lists of hosts any name


def foreign_kind(text: str, file: str) -> str:
    """The format of another program's inventory: `hostfile`, `ansible` or `slurm`. Raises FilesWrong for a text of
    another kind, and where the format cannot be decided. The text has passed `refuse_unreadable`."""
    lines = _content_lines(text)
    if any(_SECTION.fullmatch(line) for _, line in lines):
        return "ansible"
    if is_yaml(text, file):
        return _yaml_kind(text, file)
    if any(" ansible_" in line for _, line in lines):
        return "ansible"
    odd = next((found for found in lines if not any(shape.fullmatch(found[1]) for shape in _HOST_LINE_PATTERNS)), None)
    if odd is None or any(_SLOTS_LINE.fullmatch(line) for _, line in lines):  # a hostfile's odd line is reported later
        return _kind_of_hosts(text, file, lines)
    if all(_HOST_WORD.fullmatch(word) for word in odd[1].split()):
        return "slurm"
    message = "this line belongs neither to a hostfile nor to an Ansible inventory nor to a host list"
    raise _unknown_kind_error(text, file, odd[0], message)


def _yaml_kind(text: str, file: str) -> str:
    """`ansible`, for a text of YAML or JSON. Raises FilesWrong for one that is no inventory of another program."""
    document = parse_document(text, file)
    shape = kind_by_keys(document.data)
    if isinstance(document.mapping.get("plugin"), str):
        message = "this tells a plugin of Ansible where to ask for hosts, and an import runs no plugins"
        help = ansible_import_command(file)
        raise FilesWrong.of("import.program", message, span=document.key_span("plugin"), help=help)
    if (other := foreign_file(document)) is not None:
        message = f"this is {other.what}, and no inventory"
        raise FilesWrong.of("import.manifest", message, span=document.span(), help=other.help)
    if shape == PLAYBOOK:
        message, help = "this is a playbook of runbook, and no inventory", f"run it: runbook run {file} -i INVENTORY"
        raise FilesWrong.of("import.ours", message, span=document.key_span("stages"), help=help)
    if shape in (ANSIBLE_PLAYBOOK, ANSIBLE_TASKS):
        message = f"this is {shape}, and no inventory: it does not say where the hosts are"
        help = "name the inventory that ansible-playbook -i is given"
        raise FilesWrong.of("import.playbook", message, span=document.span(), help=help)
    if "nodes" in document.mapping:
        message = "this is an inventory of runbook already"
        raise FilesWrong.of(
            "import.ours", message, span=document.key_span("nodes"), help=f"use it: runbook run … -i {file}"
        )
    return "ansible"


def _kind_of_hosts(text: str, file: str, lines: list[tuple[int, str]]) -> str:
    """The format of a text whose lines are hosts: with slots, with a number behind a colon, or bare."""
    if any(_SLOTS_LINE.fullmatch(line) for _, line in lines):
        return "hostfile"
    if any(ANSIBLE_RANGE.search(line) for _, line in lines):
        return "ansible"
    counts = [(number, int(match["slots"])) for number, line in lines if (match := _HOST_COLON_SLOTS.fullmatch(line))]
    port = next((number for number, count in counts if count > _MAX_SLOTS), None)
    if port is not None:
        raise _unknown_kind_error(text, file, port, "the number may be slots (a hostfile) or a port (Ansible)")
    names = [line for _, line in lines]
    return "hostfile" if counts or len(set(names)) < len(names) or any("@" in name for name in names) else "slurm"


def _unknown_kind_error(text: str, file: str, number: int, message: str) -> FilesWrong:
    return NumberedLines(text, file).wrong(
        number, "", "unknown-kind", message, "say what it is: --from hostfile, ansible, slurm or script"
    )


# Programs, manifests of Kubernetes and encrypted files in the place of an inventory or a playbook.

BATCH_SCRIPT, SHELL_SCRIPT = "a batch script of Slurm", "a shell script"
PYTHON, WINDOWS_SCRIPT = "a Python program", "a script for Windows"

_SUFFIXES = {
    **dict.fromkeys((".sh", ".bash", ".zsh"), SHELL_SCRIPT),
    **dict.fromkeys((".sbatch", ".slurm"), BATCH_SCRIPT),
    **dict.fromkeys((".bat", ".cmd", ".ps1"), WINDOWS_SCRIPT),
    ".py": PYTHON,
}
_KEY = re.compile(r"[\w.-]+")
_INTERPRETER = re.compile(r"(?:(python)[0-9.]*|(?:ba|da|z|k)?sh)")
SBATCH = re.compile(r"^#SBATCH[ \t]+-", re.MULTILINE)


class Foreign(NamedTuple):
    """A file that is neither an inventory nor a playbook: what it is, and the help."""

    what: str
    help: str


def foreign_file(document: Document) -> Foreign | None:
    """A file of Ansible Vault, a program (by its name or its first line, and without keys of YAML), or a manifest of
    Kubernetes; None for any other file."""
    if not document.text:
        return None
    if document.text.startswith("$ANSIBLE_VAULT"):
        return Foreign("a file that Ansible Vault has encrypted", VAULT_HELP)
    ours = isinstance(document.data, Mapping) and any(map(_KEY.fullmatch, document.data))
    program = None if ours else _program_kind(document)
    return (
        _kubernetes_manifest(document) if program is None else Foreign(program, _program_help(program, document.path))
    )


def _program_kind(document: Document) -> str | None:
    """The kind of program that a file is, by an `#SBATCH` line, its first line or its suffix; None if it is none."""
    if SBATCH.search(document.text):
        return BATCH_SCRIPT
    first, *words = document.lines[0].split()[:2] or [""]
    named = words[0] if words and first.endswith(("/env", "#!")) else first.removeprefix("#!")
    found = _INTERPRETER.fullmatch(PurePath(named).name) if first.startswith("#!") else None
    if found is not None:
        return PYTHON if found[1] else SHELL_SCRIPT
    return _SUFFIXES.get(PurePath(document.path).suffix.lower())


def _program_help(program: str, path: str) -> str:
    """The help for a program: how runbook does what the program is for."""
    file = shell_word(PurePath(path).name)
    return {
        BATCH_SCRIPT: f"`runbook inventory import {shell_word(path)}` reads its nodes and its launch; in its job, "
        "`runbook run PLAYBOOK -i slurm` takes the nodes of that",
        SHELL_SCRIPT: f"a stage starts it once on each node: `shell: sh {file}`; of a launcher in it, "
        f"`runbook inventory import {shell_word(path)}` makes a launch",
        PYTHON: f"a stage starts it as every rank: `launch: {{command: [{file}]}}`",
        WINDOWS_SCRIPT: "such scripts are written by `runbook render PLAYBOOK -i INVENTORY`",
    }[program]


# A file may hold several manifests, and then it is read as text.

_MANIFEST_VERSION_LINE = re.compile(r"^apiVersion:[ \t]*\S+[ \t]*\r?$", re.MULTILINE)
_MANIFEST_KIND_LINE = re.compile(r"^kind:[ \t]*([A-Z][A-Za-z]*)[ \t]*\r?$", re.MULTILINE)
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_JOB_NAME_LABELS = {
    **dict.fromkeys(("PyTorchJob", "MPIJob", "JAXJob", "TFJob", "PaddleJob"), "training.kubeflow.org/job-name"),
    **dict.fromkeys(("JobSet", "TrainJob"), "jobset.sigs.k8s.io/jobset-name"),
    "Job": "job-name",
}
"""The label whose value is the job's name on each of its pods."""


def _kubernetes_manifest(document: Document) -> Foreign | None:
    data = document.data
    if isinstance(data, Mapping):
        kind = data.get("kind") if isinstance(data.get("apiVersion"), str) else None
        about = data.get("metadata")
    else:
        found = (
            _MANIFEST_KIND_LINE.search(document.text)
            if data is None and _MANIFEST_VERSION_LINE.search(document.text)
            else None
        )
        kind, about = found and found[1], None
    if not isinstance(kind, str):
        return None
    pods = _pods_argument(kind, about if isinstance(about, Mapping) else {})
    return Foreign(f"a manifest of Kubernetes ({kind})", f"its pods, once they run, are nodes: `-i {pods}`")


def _pods_argument(kind: str, about: Mapping[str, object]) -> str:
    """The argument of `-i` that names the manifest's pods; `LABEL=VALUE` stands where the manifest does not say it."""
    label, name, namespace = _JOB_NAME_LABELS.get(kind), str(about.get("name")), str(about.get("namespace", ""))
    where = f"{namespace}:" if _KUBERNETES_NAME.fullmatch(namespace) else ""
    return (
        f"kubernetes:{where}{label}={name}"
        if label and _KUBERNETES_NAME.fullmatch(name)
        else f"kubernetes:{where}LABEL=VALUE"
    )
