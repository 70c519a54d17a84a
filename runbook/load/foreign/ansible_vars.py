"""Ansible's variables in our words: `ansible_host` is `address`, `ansible_user` is `ssh.user`; any other stays in `vars`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from runbook.load.address import address_fault, strip_brackets
from runbook.load.env import UNCARRIABLE
from runbook.load.file_kinds import NumberedLines
from runbook.load.foreign.ansible_tree import GivenVariable
from runbook.load.foreign.found import LOGIN, Remark, is_secret
from runbook.load.foreign.ssh_arguments import read_arguments
from runbook.load.scalars import flow
from runbook.load.write import Setting

GPUS = ("gpus", "num_gpus", "gpu_count")
SSH = (
    "ssh",
    "smart",
    "paramiko",
    "paramiko_ssh",
    "ansible.builtin.ssh",
    "ansible.builtin.paramiko_ssh",
    "ansible.netcommon.libssh",
)
WINDOWS = ("winrm", "psrp", "ansible.builtin.winrm", "ansible.builtin.psrp")
SHELLS = {"cmd": "bat", "powershell": "ps1", "sh": None, "bash": None, "csh": None, "fish": None, "dash": None}
_ONE_LINE = re.compile(r".+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LATER = {
    "ansible_connection": 0,
    **dict.fromkeys(("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"), 1),
    # ansible-core takes the last of a key's names that is set, whatever level set it: the old ones win.
    **dict.fromkeys(("ansible_ssh_host", "ansible_ssh_port", "ansible_ssh_user", "ansible_ssh_private_key_file"), 3),
}
"""The order in which variables are taken, later over earlier; any other is 2."""

Settings = dict[Setting, object]


class VariableMeanings:
    """What variables mean for us; every one is looked at once, however many hosts share it."""

    def __init__(self, lines: NumberedLines) -> None:
        self.remarks: list[Remark] = []
        self._lines = lines
        self._known: dict[int, tuple[GivenVariable, Settings]] = {}

    def settings(self, given: Iterable[GivenVariable]) -> Settings:
        """Our settings from variables of one level or of several, later ones winning. Raises FilesWrong."""
        last = {one.key: one for one in given}
        found: Settings = {}
        for one in sorted(last.values(), key=lambda one: _LATER.get(one.key, 2)):
            if id(one) not in self._known:
                self._known[id(one)] = (one, self._one(one))
            found.update(self._known[id(one)][1])
        return found

    def _one(self, given: GivenVariable) -> Settings:
        name, value = given.key, given.value
        if given.vault or is_secret(name, value):
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

    def _variable(self, given: GivenVariable) -> Settings:
        if given.key in GPUS and _is_gpus(given.value):
            return {("gpus",): given.value}
        if not _NAME.fullmatch(given.key):
            self._left(given, "the name of a variable has letters, digits and `_` only")
            return {}
        try:
            flow(given.value)
        except (ValueError, RecursionError):
            self._left(given, "a number that cannot be written down", shown=False)
            return {}
        return {("vars", given.key): given.value}

    def _left(self, given: GivenVariable, why: str, *, shown: bool = True) -> None:
        what = f"{given.key}={_short(given.value)}" if shown else given.key
        self.remarks.append(Remark(f"{what}: {why}", given.line))

    # One of Ansible's own variables each.

    def host(self, given: GivenVariable) -> Settings:
        address = strip_brackets(str(given.value))
        fault = address_fault(address)
        if fault is not None:
            raise self._lines.wrong(given.line, str(given.value), "bad-host", *fault)
        return {("address",): address}

    def user(self, given: GivenVariable) -> Settings:
        return self._text(given, ("ssh", "user"), LOGIN, "a login name is one word and begins with no `-`")

    def key(self, given: GivenVariable) -> Settings:
        return self._text(given, ("ssh", "key"), _ONE_LINE, "the path of a key is one line of text")

    def port(self, given: GivenVariable) -> Settings:
        text = str(given.value)
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
            raise self._lines.wrong(given.line, text, "bad-port", f"`{text}` is no port: ports run from 1 to 65535")
        return {("ssh", "port"): int(text)}

    def timeout(self, given: GivenVariable) -> Settings:
        if re.fullmatch(r"[1-9][0-9]{0,5}", str(given.value)):
            return {("ssh", "connect_timeout"): f"{given.value}s"}
        self._left(given, "not a number of seconds")
        return {}

    def arguments(self, given: GivenVariable) -> Settings:
        try:
            settings, left = read_arguments(str(given.value))
        except ValueError:
            self._left(given, "its quotes do not match")
            return {}
        self.remarks += [Remark(f"{given.key}: {one}", given.line) for one in left]
        return settings

    def connection(self, given: GivenVariable) -> Settings:
        kind = str(given.value)
        if kind in ("local", "ansible.builtin.local"):
            return {("connection",): "local"}
        if kind in WINDOWS:
            self._left(given, "runbook logs in by SSH: install OpenSSH there, or only render scripts for it")
            return {("shell",): "ps1"}
        if kind not in SSH:
            self._left(given, "runbook logs in by SSH only; the node is written as one that answers to it")
        return {}

    def shell(self, given: GivenVariable) -> Settings:
        if given.value not in SHELLS:
            self._left(given, "a shell is sh, cmd or powershell")
            return {}
        shell = SHELLS[str(given.value)]
        return {("shell",): shell} if shell else {}

    def python(self, given: GivenVariable) -> Settings:
        if str(given.value).startswith("auto"):
            return {}
        return self._text(given, ("python",), _ONE_LINE, "the path of a Python is one line of text")

    def host_keys(self, given: GivenVariable) -> Settings:
        if given.value is not True and str(given.value).lower() not in ("true", "yes", "1"):
            self._left(given, "host keys are always verified here; `host_keys: accept-new` trusts a host's first one")
        return {}

    def _text(self, given: GivenVariable, key: Setting, pattern: re.Pattern[str], why: str) -> Settings:
        text = str(given.value)
        if pattern.fullmatch(text) and not UNCARRIABLE.search(text):
            return {key: text}
        self._left(given, why)
        return {}


_MEANINGS: Mapping[str, Callable[[VariableMeanings, GivenVariable], Settings]] = {
    **dict.fromkeys(("ansible_host", "ansible_ssh_host"), VariableMeanings.host),
    **dict.fromkeys(("ansible_user", "ansible_ssh_user"), VariableMeanings.user),
    **dict.fromkeys(("ansible_port", "ansible_ssh_port"), VariableMeanings.port),
    **dict.fromkeys(("ansible_private_key_file", "ansible_ssh_private_key_file"), VariableMeanings.key),
    **dict.fromkeys(
        ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"), VariableMeanings.arguments
    ),
    **dict.fromkeys(("ansible_timeout", "ansible_ssh_timeout"), VariableMeanings.timeout),
    **dict.fromkeys(("ansible_host_key_checking", "ansible_ssh_host_key_checking"), VariableMeanings.host_keys),
    "ansible_connection": VariableMeanings.connection,
    "ansible_shell_type": VariableMeanings.shell,
    "ansible_python_interpreter": VariableMeanings.python,
}


def _is_gpus(value: object) -> bool:
    if isinstance(value, list):
        return len(set(map(str, value))) == len(value) and all(_is_number(one, 1023) for one in value)
    return _is_number(value, 1024)


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
