"""Rules about secrets in plain text, and about host keys that are not checked."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from runbook.files.yaml_document import Document, KeyPath, iterate_scalars, line_starts
from runbook.model.errors import Problem, Span
from runbook.model.secrets import (
    AUTHORIZATION_HEADER,
    LOGIN_OF_CURL,
    LOGIN_OF_REGISTRY,
    LOGIN_OF_WANDB,
    PASSWORD_FOR_PROMPT,
    PRIVATE_KEY,
    URL_PASSWORD,
    is_secret_placeholder,
    is_secret_value,
    known_tokens,
    may_contain_secret_names,
    secret_kind,
)

_ENV_HELP = (
    "write `{env: NAME}`: it is taken from the environment of the user who runs, and never printed. Then "
    "revoke this one"
)
_REMOVAL_HELP = "take it out, and revoke it: the repository's history keeps it"
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]*)(?:=(.+))?", re.DOTALL)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)"
_FLAG_IN_LINE = re.compile(r"(?<![\w-])--?([A-Za-z][A-Za-z0-9_-]*)(?:=|\s+)" + _VALUE)
_ASSIGNED = re.compile(r"(?<![\w-])(?:\$env:)?([A-Za-z_]\w*)\s*=\s*" + _VALUE)
_COMMAND_LINE_SECRETS = (
    *(("Authorization", AUTHORIZATION_HEADER), ("--user", LOGIN_OF_CURL)),
    *(("login -p", LOGIN_OF_REGISTRY), ("wandb login", LOGIN_OF_WANDB)),
)


def secrets_of_known_format(document: Document) -> Iterator[Problem]:
    """Reports secrets whose format alone gives them away, in values and comments alike."""
    text, starts = document.text, line_starts(document.text)

    def span(found: tuple[int, int]) -> Span:
        line = bisect_right(starts, found[0])
        return Span(document.path, line, found[0] - starts[line - 1] + 1, found[1] - found[0])

    for issuer, match in known_tokens(text):
        yield Problem("secret.token", f"this is {issuer}", span(match.span()), _ENV_HELP)
    if "PRIVATE KEY" in text or "PuTTY-User" in text:
        for match in PRIVATE_KEY.finditer(text):
            message = "this is a private key"
            help = f"`ssh: {{key: …}}` takes the path of one. {_REMOVAL_HELP[0].upper()}{_REMOVAL_HELP[1:]}"
            yield Problem("secret.private-key", message, span(match.span()), help)
    if "://" in text:
        for match in URL_PASSWORD.finditer(text):
            if not is_secret_placeholder(match[1]):
                yield Problem("secret.url", "this URL holds a password", span(match.span(1)), _REMOVAL_HELP)


def named_secrets(document: Document) -> Iterator[Problem]:
    """Reports secrets under keys that name them: `env: {WANDB_API_KEY: …}`, `vars: {db_password: …}`."""
    if not may_contain_secret_names(document.text):
        return
    for keys, value in iterate_scalars(document.data):
        name = next((key for key in reversed(keys) if isinstance(key, str)), "")
        if secret_kind(name) is None or value is None or isinstance(value, bool):
            continue
        text = value if isinstance(value, str) else document.texts.get(keys, str(value))
        if is_secret_value(name, text) and not _has_known_format(text):
            yield Problem("secret.value", f"`{name}` holds a secret in plain text", document.span(*keys), _ENV_HELP)


def secrets_in_commands(document: Document) -> Iterator[Problem]:
    """Reports secrets on command lines, which every user of the machine can read while they run."""
    for keys, value in _command_values(document):
        if isinstance(value, str):
            for name, start, end in _secrets_in_line(value):
                yield _secret_argument_problem(name, _span_of_part(document, keys, value, start, end))
        elif isinstance(value, list):
            words = [str(word) for word in value]
            for place, word in enumerate(words):
                if len(word.split()) > 1:
                    for name, start, end in _secrets_in_line(word):
                        yield _secret_argument_problem(name, _span_of_part(document, (*keys, place), word, start, end))
            for name, place in _secrets_in_words(words):
                if not _has_known_format(words[place]):
                    yield _secret_argument_problem(name, document.span(*keys, place))


def _command_values(document: Document) -> Iterator[tuple[KeyPath, object]]:
    """`shell` and `command` of stages, the `command` of an inventory's launch, and `activate` wherever it stands."""
    own = document.mapping.get("launch")  # of an inventory
    yield ("launch", "command"), own.get("command") if isinstance(own, dict) else None
    stages = document.mapping.get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        if isinstance(stage, dict):
            yield ("stages", index, "shell"), stage.get("shell")
            launch = stage.get("launch")
            yield ("stages", index, "launch", "command"), launch.get("command") if isinstance(launch, dict) else None
    if "activate" in document.text and may_contain_secret_names(document.text):
        yield from ((keys, value) for keys, value in iterate_scalars(document.data) if keys and keys[-1] == "activate")


def _secrets_in_words(words: list[str]) -> Iterator[tuple[str, int]]:
    """`--token=…` and `--token …`: the flag, and which word holds the secret."""
    for index, word in enumerate(words):
        flag = _FLAG.fullmatch(word)
        if flag is None:
            continue
        if flag[2] is not None:
            if is_secret_value(flag[1], flag[2]):
                yield f"--{flag[1]}", index
        elif (
            index + 1 < len(words)
            and not words[index + 1].startswith("-")
            and is_secret_value(flag[1], words[index + 1])
        ):
            yield word, index + 1


def _secrets_in_line(line: str) -> Iterator[tuple[str, int, int]]:
    """The secrets in one line of shell: the name of what is given the secret, and where the secret begins and ends."""
    for pattern in (_FLAG_IN_LINE, _ASSIGNED):
        for match in pattern.finditer(line):
            text = match[2].strip("\"'")
            if not text.startswith("-") and is_secret_value(match[1], text) and not _has_known_format(text):
                yield match[1], *match.span(2)
    for match in PASSWORD_FOR_PROMPT.finditer(line):
        if not is_secret_placeholder(match[match.lastindex or 0].strip("\"'")):
            yield "a prompt", *match.span(match.lastindex or 0)
    for name, pattern in _COMMAND_LINE_SECRETS:
        for match in pattern.finditer(line):
            if not is_secret_placeholder(match[1]) and not _has_known_format(match[1]):
                yield name, *match.span(1)


def _secret_argument_problem(name: str, span: Span | None) -> Problem:
    help = "let the program read it from a variable that is written `{env: NAME}`, or from a file. Then revoke this one"
    return Problem("secret.argument", f"the command gives `{name}` a secret in plain text", span, help)


def _has_known_format(text: str) -> bool:
    """Whether the format of a text alone says that it is a secret."""
    return any(True for _ in known_tokens(text)) or PRIVATE_KEY.search(text) is not None


def _span_of_part(document: Document, keys: KeyPath, value: str, start: int, end: int) -> Span | None:
    """The place of a part of a text; the place of the whole text if it is typed differently from how it reads."""
    whole = document.span(*keys)
    if whole is None:
        return None
    line = document.lines[whole.line - 1]
    at = line.find(value, whole.column - 1)
    return whole if at < 0 else Span(whole.file, whole.line, at + start + 1, end - start)


# Host keys: options that switch their check off in spite of `host_keys:`.

_HOST_KEYS_OFF = re.compile(
    r"\b(?:StrictHostKeyChecking[ =]+(?:no|off|false)\b|(?:User|Global)KnownHostsFile[ =]+(?:/dev/null|none\b|NUL\b)"
    r"|ANSIBLE_HOST_KEY_CHECKING[ =]+(?:false|no|0)\b)",
    re.IGNORECASE,
)
_HOST_KEY_SETTINGS = ("KnownHostsFile", "StrictHostKeyChecking", "HOST_KEY_CHECKING")


def host_keys_off(document: Document) -> Iterator[Problem]:
    """Reports options in any value that switch the check of host keys off; the schema refuses that for `host_keys`."""
    text = document.text.lower()
    if not any(name.lower() in text for name in _HOST_KEY_SETTINGS):
        return
    for keys, value in iterate_scalars(document.data):
        setting = f"{keys[-1]}={value}" if keys and isinstance(keys[-1], str) else str(value)
        if _HOST_KEYS_OFF.search(setting):
            message = "this accepts any host key: an attacker in between gets the login"
            help = "`StrictHostKeyChecking=accept-new` trusts the first key; better, put the keys into known_hosts"
            yield Problem("ssh.host-keys-off", message, document.span(*keys), help)


DOCUMENT_RULES = (host_keys_off, secrets_of_known_format, named_secrets, secrets_in_commands)
