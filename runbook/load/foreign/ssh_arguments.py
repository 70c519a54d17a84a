"""`ansible_ssh_common_args` and its like: what of ssh's own options has a key in our inventory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from runbook.load.foreign.found import is_secret
from runbook.load.write import Setting

_WITH_VALUE = "bcDeEFIiJLlmOopQRSWw"
_OPTIONS = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump"}
_QUIET = {"controlmaster", "controlpersist", "controlpath", "loglevel", "batchmode", "preferredauthentications"}
"""Options that say how Ansible keeps its own connections; ours are kept another way."""


def read_arguments(text: str) -> tuple[dict[Setting, object], list[str]]:
    """Our settings, and the arguments that have no place in ours, each with why. Raises ValueError for odd quotes."""
    settings: dict[Setting, object] = {}
    left: list[str] = []
    for name, value in _options(shlex.split(text)):
        given = _setting(name.lower(), value)
        if given is None:
            shown = name if is_secret("", value) else f"{name} {value}".strip()
            left.append(f"{shown}: put it into ~/.ssh/config, which is honoured")
        elif isinstance(given, str):
            left.append(f"{name} {value}: {given}")
        else:
            settings.update(given)
    return settings, left


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """ssh's options by their long names: `-p 22` and `-o Port=22` are one."""
    todo = list(words)
    while todo:
        word = todo.pop(0)
        if not re.match(r"-[A-Za-z]", word):
            yield word, ""
            continue
        letter, value = word[1], word[2:]
        if letter not in _WITH_VALUE:
            yield word, ""
            continue
        if not value and todo:
            value = todo.pop(0)
        if letter == "o":
            name, _, value = re.sub(r"\s*=\s*|\s+", "=", value.strip(), count=1).partition("=")
            yield name, value.strip("\"'")
        else:
            yield _OPTIONS.get(letter, f"-{letter}"), value


def _setting(name: str, value: str) -> dict[Setting, object] | str | None:
    """Our setting; or why there is none on purpose; None for what we know nothing of."""
    match name:
        case "port" if value.isdigit() and 1 <= int(value) <= 65535:
            return {("ssh", "port"): int(value)}
        case "user" if re.fullmatch(r"[^-\s]\S*", value):
            return {("ssh", "user"): value}
        case "identityfile" if value:
            return {("ssh", "key"): value}
        case "proxyjump" if re.fullmatch(r"[^-\s]\S*", value):
            return {} if value == "none" else {("ssh", "jump"): value}
        case "proxycommand":
            jump = _jump(value)
            return {("ssh", "jump"): jump} if jump else None
        case "connecttimeout" if value.isdigit() and int(value) > 0:
            return {("ssh", "connect_timeout"): f"{value}s"}
        case "stricthostkeychecking" if value in ("accept-new", "yes", "ask"):
            return {("ssh", "host_keys"): "accept-new"} if value == "accept-new" else {}
        case "stricthostkeychecking" | "userknownhostsfile" if value in ("no", "off", "/dev/null"):
            return "host keys are always verified here; `host_keys: accept-new` trusts a host's first one"
        case name if name in _QUIET or name == "-c" or name == "-q":
            return {}
    return None


def _jump(command: str) -> str | None:
    """The host of `ssh -W %h:%p -q user@bastion`, with its port; None for any other program."""
    words = shlex.split(command)
    if not words or words[0].rpartition("/")[2] != "ssh" or is_secret("", command):
        return None
    given = dict(_options(words[1:]))
    hosts = [name for name, value in given.items() if not value and not name.startswith("-")]
    if given.get("-W") not in ("%h:%p", "[%h]:%p") or len(hosts) != 1 or "identityfile" in given:
        return None
    user = f"{given['user']}@" if "user" in given and "@" not in hosts[0] else ""
    return user + hosts[0] + (f":{given['port']}" if "port" in given else "")
