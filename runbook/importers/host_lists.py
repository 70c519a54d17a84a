"""Reads hostfiles of DeepSpeed, MPI and PBS, and Slurm's host lists."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.files.address import address_fault, is_ip, strip_brackets
from runbook.files.inventory_draft import SettingPath
from runbook.files.node_sets import split_names
from runbook.files.problems import NumberedLines
from runbook.files.suggestions import nearest_word
from runbook.importers.foreign_inventory import (
    HOST_LIST_FORMAT,
    HOSTFILE_FORMAT,
    LOGIN_NAME,
    ForeignHost,
    ForeignInventory,
    Remark,
    check_host_count,
    expand_names,
    may_contain_secret,
)
from runbook.model.inventory import MAX_GPUS_PER_NODE

SLOT_KEYS = ("slots", "count", "cpu")
USER_KEYS = ("user", "username", "user_name", "user-name")
UNSUPPORTED_KEYS = {
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max"), "a node has as many ranks as GPUs"),
    "ifname": "the interface of the job goes into `network: {interface: …}`",
}
_HOST_COLON_SLOTS = re.compile(r"\A(?P<host>.+?):(?P<slots>[0-9]+)")


@dataclass
class _HostLine:
    """What a hostfile says of one host; `counted`: its slots are given, and not only assumed."""

    line: int
    slots: int = 0
    counted: bool = False
    user: str | None = None


def read_hostfile(text: str, file: str) -> ForeignInventory:
    """The inventory of a hostfile. Raises FilesWrong at the first line that does not belong into one."""
    lines = NumberedLines(text, file)
    seen: dict[str, _HostLine] = {}
    remarks: list[Remark] = []
    one_a_line = False  # whether a host has one line for each of its slots, as mpirun counts them
    for number, raw in enumerate(lines.lines, 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        name, *words = "=".join(part.strip() for part in line.split("=")).split()
        user, name, slots = _parse_host_word(lines, number, name)
        for word in words:
            key, equals, value = word.partition("=")
            value = value.strip("\"'")
            if not equals:
                help = "a line is a host and then `slots=8`, or `host:8`; a rankfile (`rank 0=host slot=1`) is none"
                raise lines.wrong(number, word, "hostfile-syntax", f"`{word}` is not `name=value`", help)
            if key in SLOT_KEYS:
                slots = _slot_count(lines, number, word, value)
            elif key in USER_KEYS:
                user = _checked_login_name(lines, number, value)
            elif key not in UNSUPPORTED_KEYS and (near := nearest_word(key, (*SLOT_KEYS, *USER_KEYS))):
                message = f"`{key}` is not a word of a hostfile"
                raise lines.wrong(number, word, "hostfile-syntax", message, f"did you mean `{near}`?")
            else:
                why = UNSUPPORTED_KEYS.get(key, "this has no place in our inventory")
                shown = key if may_contain_secret(key, value) else word
                remarks.append(Remark(f"{name}: {shown}: {why}", number))
        for one in expand_names(name, lines, number):
            host = seen.setdefault(one, _HostLine(number))
            host.slots += 1 if slots is None else slots
            again = slots is None and host.line != number
            host.counted |= slots is not None or again
            one_a_line |= again
            host.user = user or host.user
            if host.slots > MAX_GPUS_PER_NODE:
                raise lines.wrong(number, name, "hostfile-slots", f"{one} now has more than {MAX_GPUS_PER_NODE} slots")
        check_host_count(seen, lines, number, name)
    for host in seen.values():
        host.counted |= one_a_line
    if not seen:
        raise lines.wrong(1, "", "empty", "there is no host in this file", "a line is a host: `gn01 slots=8`")
    hosts = tuple(_foreign_host(lines, name, host) for name, host in seen.items())
    return ForeignInventory(HOSTFILE_FORMAT, file, hosts, remarks=tuple(remarks))


def _parse_host_word(lines: NumberedLines, number: int, word: str) -> tuple[str | None, str, int | None]:
    """User, host and slots of `user@host:8`; user and slots are None if not given. Raises FilesWrong."""
    user, at, name = word.rpartition("@")
    slots = None
    if not is_ip(name) and (counted := _HOST_COLON_SLOTS.fullmatch(name)):
        name, slots = counted["host"], _slot_count(lines, number, word, counted["slots"])
    name = strip_brackets(name)
    fault = address_fault(re.sub(r"\[[0-9,-]*\]", "0", name))
    if fault is not None:
        raise lines.wrong(number, word, "bad-host", *fault)
    return _checked_login_name(lines, number, user) if at else None, name, slots


def _checked_login_name(lines: NumberedLines, number: int, text: str) -> str:
    if LOGIN_NAME.fullmatch(text):
        return text
    raise lines.wrong(
        number, text, "bad-user", f"`{text}` is not a login name", "it is one word and begins with no `-`"
    )


def _slot_count(lines: NumberedLines, number: int, word: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) > MAX_GPUS_PER_NODE:
        raise lines.wrong(
            number, word, "hostfile-slots", f"`{value}` is not a number of slots from 0 to {MAX_GPUS_PER_NODE}"
        )
    return int(value)


def _foreign_host(lines: NumberedLines, name: str, host: _HostLine) -> ForeignHost:
    settings: dict[SettingPath, object] = {}
    if host.counted:
        settings["gpus",] = host.slots
    if host.user:
        settings["ssh", "user"] = host.user
    return ForeignHost(name, lines.span(host.line, name), settings)


# Slurm's host lists: `gn[01-04,07],login1`, `r[1-2]n[01-16]`, or the lines of `scontrol show hostnames`.


def read_host_list(text: str, file: str) -> ForeignInventory:
    """The inventory of a host list. Raises FilesWrong at the first word that is no host and no range of hosts."""
    lines = NumberedLines(text, file)
    hosts: dict[str, ForeignHost] = {}
    for number, raw in enumerate(lines.lines, 1):
        line = raw.partition("#")[0].strip()
        for word in split_names(line):
            names = expand_names(word, lines, number)
            fault = address_fault(names[0])
            if fault is not None:
                help = fault[1] or "a host list reads gn[01-04,07],login1"
                raise lines.wrong(number, word, "bad-host", fault[0], help)
            for name in names:
                hosts.setdefault(name, ForeignHost(name, lines.span(number, word), {}))
            check_host_count(hosts, lines, number, word)
    if not hosts:
        raise lines.wrong(
            1, "", "empty", "the host list is empty", "inside a job: runbook inventory import $SLURM_JOB_NODELIST"
        )
    return ForeignInventory(HOST_LIST_FORMAT, file, tuple(hosts.values()))
