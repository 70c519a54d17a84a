"""Reads Ansible's inventories: each host with what its groups and itself give it, and its variables in our words.

`ansible_host` is `address`, `ansible_user` is `ssh.user`; any variable without a key of ours stays in `vars`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping

from runbook.files.address import address_fault, strip_brackets
from runbook.files.environment_values import UNQUOTABLE_CHARACTER
from runbook.files.extra_vars import VARIABLE_NAME
from runbook.files.inventory_draft import SettingPath, SettingsByPath
from runbook.files.problems import NumberedLines
from runbook.files.scalars import flow_yaml
from runbook.importers.ansible_files import BUILTIN_GROUPS, GivenVariable, Tree, read_ini_inventory, read_yaml_inventory
from runbook.importers.foreign_inventory import (
    ANSIBLE_FORMAT,
    LOGIN_NAME,
    ForeignHost,
    ForeignInventory,
    Remark,
    may_contain_secret,
)
from runbook.model.grouping import values_by_key
from runbook.model.inventory import MAX_GPUS_PER_NODE
from runbook.model.units import parse_whole_number


def read_ansible(text: str, file: str, *, yaml: bool) -> ForeignInventory:
    """The inventory of a text of Ansible's. Raises FilesWrong for what Ansible would refuse too, and for invalid
    addresses and ports."""
    tree = read_yaml_inventory(text, file) if yaml else read_ini_inventory(text, file)
    if not tree.hosts:
        raise tree.lines.wrong(1, "", "empty", "there is no host in this inventory")
    order = tree.weakest_first()
    members = {name: tree.members(name) for name in order if name not in BUILTIN_GROUPS}
    groups_of = values_by_key((host, name) for name in order for host in members.get(name, ()))
    meaning = VariableMeanings(tree.lines)
    hosts = tuple(
        _ansible_host(tree, name, meaning.settings([*_group_variables(tree, groups_of.get(name)), *entry.given]))
        for name, entry in tree.hosts.items()
    )
    group_settings: dict[str, SettingsByPath] = {name: meaning.settings(tree.groups[name].given) for name in members}
    remarks = list(meaning.remarks)
    for name in members:
        if not members[name]:
            held = ", ".join(dict.fromkeys(given.key for given in tree.groups[name].given))
            says = f"the group {name} has no hosts" + (f"; it set {held}" if held else "")
            remarks.append(Remark(says, tree.groups[name].line))
    filled = {name: members[name] for name in tree.groups if members.get(name)}
    groups = {name: tuple(host for host in tree.hosts if host in of) for name, of in filled.items()}
    return ForeignInventory(ANSIBLE_FORMAT, file, hosts, groups, group_settings, tuple(remarks))


def _group_variables(tree: Tree, groups: list[str] | None) -> list[GivenVariable]:
    """The variables that `all` and then a host's own groups give; a host in no group has those of `ungrouped`."""
    return [given for name in ("all", *(groups or ["ungrouped"])) for given in tree.groups[name].given]


def _ansible_host(tree: Tree, name: str, settings: SettingsByPath) -> ForeignHost:
    """The host with its settings. Without `ansible_host` it is dialled by its name; raises FilesWrong if that cannot be
    dialled."""
    line = tree.hosts[name].line
    if ("address",) not in settings:
        user, at, address = name.rpartition("@")
        fault = address_fault(address)
        if fault is not None or (at and not LOGIN_NAME.fullmatch(user)):
            help = "a host is a name or an address; any other name needs an ansible_host"
            message = fault[0] if fault else f"`{user}` is not a login name"
            raise tree.lines.wrong(line, name, "bad-host", message, help)
        if at:
            settings = {("ssh", "user"): user, **settings, ("address",): address}
    return ForeignHost(name, tree.lines.span(line, name), settings)


# Variables of Ansible as settings of ours.

GPU_COUNT_VARIABLES = ("gpus", "num_gpus", "gpu_count")
SSH = (
    *("ssh", "smart", "paramiko", "paramiko_ssh"),
    *("ansible.builtin.ssh", "ansible.builtin.paramiko_ssh", "ansible.netcommon.libssh"),
)
WINRM_CONNECTIONS = ("winrm", "psrp", "ansible.builtin.winrm", "ansible.builtin.psrp")
SHELL_BY_ANSIBLE_NAME = {
    "cmd": "bat",
    "powershell": "ps1",
    "sh": None,
    "bash": None,
    "csh": None,
    "fish": None,
    "dash": None,
}
SSH_ARGUMENT_VARIABLES = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_ONE_LINE = re.compile(r".+")
_VARIABLE_PRECEDENCE = {
    "ansible_connection": 0,
    **dict.fromkeys(SSH_ARGUMENT_VARIABLES, 1),
    # ansible-core takes the last of a key's names that is set, whatever level set it: the old ones win.
    **dict.fromkeys(("ansible_ssh_host", "ansible_ssh_port", "ansible_ssh_user", "ansible_ssh_private_key_file"), 3),
}
"""The place of a variable in the order in which variables are taken, later over earlier; any other has place 2."""

FoundSettings = dict[SettingPath, object]


class VariableMeanings:
    """Translates variables into our settings; each variable is judged once, however many hosts share it."""

    def __init__(self, lines: NumberedLines) -> None:
        self.remarks: list[Remark] = []
        self._lines = lines
        self._known: dict[int, tuple[GivenVariable, FoundSettings]] = {}

    def settings(self, given: Iterable[GivenVariable]) -> FoundSettings:
        """Our settings for the variables of one level or of several, of which later ones win. Raises FilesWrong."""
        last = {one.key: one for one in given}
        found: FoundSettings = {}
        for one in sorted(last.values(), key=lambda one: _VARIABLE_PRECEDENCE.get(one.key, 2)):
            if id(one) not in self._known:
                self._known[id(one)] = (one, self._one(one))
            found.update(self._known[id(one)][1])
        return found

    def _one(self, given: GivenVariable) -> FoundSettings:
        """Our settings for one variable; a remark if it has no place in ours."""
        name, value = given.key, given.value
        if given.vault or may_contain_secret(name, value):
            own = name.startswith("ansible_")
            why = "runbook logs in by key" if own else "ranks get theirs by `env: {NAME: {env: NAME}}`"
            self._left(given, f"a secret, not copied: {why}", shown=False)
            return {}
        if not name.startswith("ansible_"):
            return self._variable(given)
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            self._left(given, "a template, which only Ansible can fill in")
            return {}
        if name in _MEANINGS:
            return _MEANINGS[name](self, given)
        if name.startswith("ansible_become"):
            self._left(given, "runbook never becomes another user: log in as the one that owns the job")
        elif name != "ansible_group_priority":
            self._left(given, "an Ansible setting that has no place in our inventory")
        return {}

    def _variable(self, given: GivenVariable) -> FoundSettings:
        if given.key in GPU_COUNT_VARIABLES and _is_gpu_setting(given.value):
            return {("gpus",): given.value}
        if not VARIABLE_NAME.fullmatch(given.key):
            self._left(given, "the name of a variable has letters, digits and `_` only")
            return {}
        try:
            flow_yaml(given.value)
        except (ValueError, RecursionError):
            self._left(given, "a value that cannot be written down", shown=False)
            return {}
        return {("vars", given.key): given.value}

    def _left(self, given: GivenVariable, why: str, *, shown: bool = True) -> None:
        what = f"{given.key}={_shortened_value(given.value)}" if shown else given.key
        self.remarks.append(Remark(f"{what}: {why}", given.line))

    # Each of these methods translates one of Ansible's own variables.

    def host(self, given: GivenVariable) -> FoundSettings:
        address = strip_brackets(str(given.value))
        fault = address_fault(address)
        if fault is not None:
            raise self._lines.wrong(given.line, str(given.value), "bad-host", *fault)
        return {("address",): address}

    def user(self, given: GivenVariable) -> FoundSettings:
        return self._text(given, ("ssh", "user"), LOGIN_NAME, "a login name is one word and begins with no `-`")

    def key(self, given: GivenVariable) -> FoundSettings:
        return self._text(given, ("ssh", "key"), _ONE_LINE, "the path of a key is one line of text")

    def port(self, given: GivenVariable) -> FoundSettings:
        text = str(given.value)
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
            raise self._lines.wrong(given.line, text, "bad-port", f"`{text}` is not a port: ports run from 1 to 65535")
        return {("ssh", "port"): int(text)}

    def timeout(self, given: GivenVariable) -> FoundSettings:
        if re.fullmatch(r"[1-9][0-9]{0,5}", str(given.value)):
            return {("ssh", "connect_timeout"): f"{given.value}s"}
        self._left(given, "not a number of seconds")
        return {}

    def arguments(self, given: GivenVariable) -> FoundSettings:
        try:
            settings, left = read_ssh_arguments(str(given.value))
        except ValueError:
            self._left(given, "its quotes do not match")
            return {}
        self.remarks += [Remark(f"{given.key}: {one}", given.line) for one in left]
        return settings

    def connection(self, given: GivenVariable) -> FoundSettings:
        kind = str(given.value)
        if kind in ("local", "ansible.builtin.local"):
            return {("connection",): "local"}
        if kind in WINRM_CONNECTIONS:
            self._left(given, "runbook logs in by SSH: install OpenSSH there, or only render scripts for it")
            return {("shell",): "ps1"}
        if kind not in SSH:
            self._left(given, "runbook logs in by SSH only; the node is written as one that answers to it")
        return {}

    def shell(self, given: GivenVariable) -> FoundSettings:
        if given.value not in SHELL_BY_ANSIBLE_NAME:
            self._left(given, "a shell is sh, cmd or powershell")
            return {}
        shell = SHELL_BY_ANSIBLE_NAME[str(given.value)]
        return {("shell",): shell} if shell else {}

    def python(self, given: GivenVariable) -> FoundSettings:
        if str(given.value).startswith("auto"):
            return {}
        return self._text(given, ("python",), _ONE_LINE, "the path of a Python is one line of text")

    def host_keys(self, given: GivenVariable) -> FoundSettings:
        if given.value is not True and str(given.value).lower() not in ("true", "yes", "1"):
            self._left(given, "host keys are always verified here; `host_keys: accept-new` trusts a host's first one")
        return {}

    def _text(self, given: GivenVariable, key: SettingPath, pattern: re.Pattern[str], why: str) -> FoundSettings:
        text = str(given.value)
        if pattern.fullmatch(text) and not UNQUOTABLE_CHARACTER.search(text):
            return {key: text}
        self._left(given, why)
        return {}


_MEANINGS: Mapping[str, Callable[[VariableMeanings, GivenVariable], FoundSettings]] = {
    **dict.fromkeys(("ansible_host", "ansible_ssh_host"), VariableMeanings.host),
    **dict.fromkeys(("ansible_user", "ansible_ssh_user"), VariableMeanings.user),
    **dict.fromkeys(("ansible_port", "ansible_ssh_port"), VariableMeanings.port),
    **dict.fromkeys(("ansible_private_key_file", "ansible_ssh_private_key_file"), VariableMeanings.key),
    **dict.fromkeys(SSH_ARGUMENT_VARIABLES, VariableMeanings.arguments),
    **dict.fromkeys(("ansible_timeout", "ansible_ssh_timeout"), VariableMeanings.timeout),
    **dict.fromkeys(("ansible_host_key_checking", "ansible_ssh_host_key_checking"), VariableMeanings.host_keys),
    "ansible_connection": VariableMeanings.connection,
    "ansible_shell_type": VariableMeanings.shell,
    "ansible_python_interpreter": VariableMeanings.python,
}


def _is_gpu_setting(value: object) -> bool:
    if isinstance(value, list):
        return len(set(map(str, value))) == len(value) and all(
            _is_number_up_to(one, MAX_GPUS_PER_NODE - 1) for one in value
        )
    return _is_number_up_to(value, MAX_GPUS_PER_NODE)


def _is_number_up_to(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _shortened_value(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


# `ansible_ssh_common_args` and its like: options of ssh as keys of our inventory.

_SSH_VALUE_LETTERS = "bcDeEFIiJLlmOopQRSWw"
_SSH_OPTION_BY_LETTER = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump"}
_IGNORED_SSH_OPTIONS = {
    "controlmaster",
    "controlpersist",
    "controlpath",
    "loglevel",
    "batchmode",
    "preferredauthentications",
}
"""Options that say how Ansible keeps its own connections; ours are kept another way."""


def read_ssh_arguments(text: str) -> tuple[dict[SettingPath, object], list[str]]:
    """Our settings for arguments of ssh, and a sentence on each argument that has no place in ours. Raises ValueError
    for quotes that do not match."""
    settings: dict[SettingPath, object] = {}
    left: list[str] = []
    for name, value in _ssh_options(shlex.split(text)):
        given = _setting_for_ssh_option(name.lower(), value)
        if given is None:
            shown = name if may_contain_secret("", value) else f"{name} {value}".strip()
            left.append(f"{shown}: put it into ~/.ssh/config, which is honoured")
        elif isinstance(given, str):
            left.append(f"{name} {value}: {given}")
        else:
            settings.update(given)
    return settings, left


def _ssh_options(words: list[str]) -> Iterator[tuple[str, str]]:
    """ssh's options by their long names: `-p 22` and `-o Port=22` are one."""
    todo = list(words)
    while todo:
        word = todo.pop(0)
        if not re.match(r"-[A-Za-z]", word):
            yield word, ""
            continue
        letter, value = word[1], word[2:]
        if letter not in _SSH_VALUE_LETTERS:
            yield word, ""
            continue
        if not value and todo:
            value = todo.pop(0)
        if letter == "o":
            name, _, value = re.sub(r"\s*=\s*|\s+", "=", value.strip(), count=1).partition("=")
            yield name, value.strip("\"'")
        else:
            yield _SSH_OPTION_BY_LETTER.get(letter, f"-{letter}"), value


def _setting_for_ssh_option(name: str, value: str) -> dict[SettingPath, object] | str | None:
    """Our setting for an option of ssh; a sentence if there is none on purpose; None for an unknown option."""
    match name:
        case "port" if 1 <= (parse_whole_number(value) or 0) <= 65535:
            return {("ssh", "port"): int(value)}
        case "user" if re.fullmatch(r"[^-\s]\S*", value):
            return {("ssh", "user"): value}
        case "identityfile" if value:
            return {("ssh", "key"): value}
        case "proxyjump" if re.fullmatch(r"[^-\s]\S*", value):
            return {} if value == "none" else {("ssh", "jump"): value}
        case "proxycommand":
            jump = _jump_host_of_command(value)
            return {("ssh", "jump"): jump} if jump else None
        case "connecttimeout" if parse_whole_number(value):
            return {("ssh", "connect_timeout"): f"{value}s"}
        case "stricthostkeychecking" if value in ("accept-new", "yes", "ask"):
            return {("ssh", "host_keys"): "accept-new"} if value == "accept-new" else {}
        case "stricthostkeychecking" | "userknownhostsfile" if value in ("no", "off", "/dev/null"):
            return "host keys are always verified here; `host_keys: accept-new` trusts a host's first one"
        case name if name in _IGNORED_SSH_OPTIONS or name == "-c" or name == "-q":
            return {}
    return None


def _jump_host_of_command(command: str) -> str | None:
    """The host of `ssh -W %h:%p -q user@bastion`, with its port; None for any other program."""
    words = shlex.split(command)
    if not words or words[0].rpartition("/")[2] != "ssh" or may_contain_secret("", command):
        return None
    given = dict(_ssh_options(words[1:]))
    hosts = [name for name, value in given.items() if not value and not name.startswith("-")]
    if given.get("-W") not in ("%h:%p", "[%h]:%p") or len(hosts) != 1 or "identityfile" in given:
        return None
    user = f"{given['user']}@" if "user" in given and "@" not in hosts[0] else ""
    return user + hosts[0] + (f":{given['port']}" if "port" in given else "")
