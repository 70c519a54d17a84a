"""Secrets: the type of a value that must not be printed, and how a secret is recognised: by formats that issuers use,
by names that say so, by places on command lines. Also tells values that only stand for a secret, such as `$TOKEN`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from runbook.model.text_search import TextSpan


class Format(NamedTuple):
    """A format of tokens. Every token of it holds one of `begins`: a text without them need not be searched."""

    issuer: str
    begins: tuple[str, ...]
    pattern: re.Pattern[str]


def _token_format(issuer: str, begins: str, pattern: str) -> Format:
    return Format(issuer, tuple(begins.split()), re.compile(r"(?<![A-Za-z0-9])(?:" + pattern + ")"))


TOKEN_FORMATS = (
    _token_format("an AWS access key", "AKIA ASIA", r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token_format("a GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _token_format("a GitHub token", "github_pat_", r"github_pat_[A-Za-z0-9_]{40,}"),
    _token_format("a GitLab token", "glpat- glrt- gldt- glcbt-", r"gl(?:pat|rt|dt|cbt)-[A-Za-z0-9_-]{20,}"),
    _token_format("a Hugging Face token", "hf_", r"hf_[A-Za-z0-9]{30,}"),
    _token_format(
        "an API key of OpenAI's or Anthropic's kind", "sk-", r"sk-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{32,}"
    ),
    _token_format("a Stripe key", "k_live_", r"[sr]k_live_[A-Za-z0-9]{20,}"),
    _token_format("a Slack token", "xox", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    _token_format("a Google API key", "AIza", r"AIza[A-Za-z0-9_-]{35}"),
    _token_format("an NVIDIA API key", "nvapi-", r"nvapi-[A-Za-z0-9_-]{20,}"),
    _token_format("a Docker token", "dckr_pat_", r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    _token_format("a PyPI token", "pypi-AgEI", r"pypi-AgEI[A-Za-z0-9_-]{20,}"),
    _token_format("a Tailscale key", "tskey-", r"tskey-[a-z]{2,20}-[A-Za-z0-9]{8,}(?:-[A-Za-z0-9]{8,})?"),
    _token_format("an age key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{40,}"),
    _token_format("a JSON Web Token", "eyJ", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
)
PRIVATE_KEY_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
PRIVATE_KEY = re.compile(PRIVATE_KEY_BEGIN.pattern + r"[^\n]*|PuTTY-User-Key-File-[0-9][^\n]*")
URL_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>]*:([^\s/@\"'<>]+)@", re.IGNORECASE)
AUTHORIZATION_HEADER = re.compile(r"\bAuthorization:\s*(?:Bearer|Basic|token)\s+([^\s\"'$]{8,})", re.IGNORECASE)
LOGIN_OF_CURL = re.compile(
    r"\b(?:curl|wget)\s(?:[^|;&]{0,500}\s)?(?:-u|--user)[\s=]+[\"']?[^\s:\"'=][^\s:\"']*:([^\s\"'$]+)"
)
LOGIN_OF_REGISTRY = re.compile(
    r"\b(?:docker|podman|nerdctl|buildah|skopeo|oras|helm\s+registry)\s+login\s(?:[^|;&\n]{0,500}\s)?"
    r"-p[\s=]*[\"']?([^\s\"'$-][^\s\"'$]*)"
)
LOGIN_OF_WANDB = re.compile(r"\bwandb\s+login\s(?:[^|;&\n]{0,500}\s)?([0-9A-Za-z_]{32,})(?![\w-])")
PASSWORD_FOR_PROMPT = re.compile(
    r"\bsshpass\s+-p\s*(?![\"']?\$)([^\s$]+)|\becho\s{1,20}(?!\s)([^|;&$]{1,200}?)\s{0,20}\|\s{0,20}sudo\s{1,20}-\w{0,20}S"
)

_URL_USERINFO = re.compile(r"://([^\s/:@\"'<>]*):([^\s\"'<>]+)@|://([^\s/:@\"'<>]{16,})@")
_UNQUOTED_WORD = re.compile(r"[^\s\"'<>]+")
_PORT_OF_URL = re.compile(r"[0-9]{1,5}(?:[/,?#]|$)")
_SECRETS_ON_COMMAND_LINES = (
    AUTHORIZATION_HEADER,
    LOGIN_OF_CURL,
    LOGIN_OF_REGISTRY,
    LOGIN_OF_WANDB,
    PASSWORD_FOR_PROMPT,
)

_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PASSWORD_WORD = re.compile(
    r"(?!no)\w*(?:password|passwd|passphrase)|pwd"
)  # PGPASSWORD is one word; NOPASSWD is sudo's
_PASS_PREFIX_WORDS = {
    "ssh",
    "sudo",
    "su",
    "become",
    "db",
    "user",
    "login",
    "root",
    "admin",
    "redis",
    "mysql",
    "vault",
}  # `…_pass`
_KEY_PREFIX_WORDS = {"api", "access", "secret", "private", "auth", "encryption", "account", "signing"}
_SECRET_NAME_HINTS = (
    "pass",
    "pwd",
    "token",
    "secret",
    "credential",
    "apikey",
    *(f"{word}{joint}key" for word in _KEY_PREFIX_WORDS for joint in ("", "_", "-")),
)
_POSSIBLE_TOKEN_NAME = re.compile(r"(?i)\A(?:.*[._-])?(?:jwt|cookies?|session_?id|authorization|auth)")
_SECRET_HINTING_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:pass|pw|pwd)(?:[_-]|$)|passw(?:or)?d|passphrase|secret|credential"
    r"|(?:api|private|access|auth)_?key$"
)
_SECRET_PLACEHOLDER = re.compile(
    r"<.*>|\[.*\]|\{.*\}|\$\{?\w+\}?|%\w+%|[*x.•…-]+|.*\{\{.*|(?:none|null|true|false|yes|no|prompt|ask)"
    r"|change[-_ ]?me|your[-_ ].*|redacted|todo",
    re.IGNORECASE | re.DOTALL,
)
_TOKEN_LIKE = re.compile(r"\A(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9_\-.=+/:~]{16,}")


def known_tokens(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """(issuer, match) for every token of a known format in the text; `issuer` is a phrase such as `a GitHub token`."""
    for issuer, begins, pattern in TOKEN_FORMATS:
        if any(beginning in text for beginning in begins):
            yield from ((issuer, match) for match in pattern.finditer(text))


def url_secret_spans(text: str) -> Iterator[TextSpan]:
    """The places of passwords in URLs such as `https://login:password@host`, and of tokens in place of both."""
    for match in _url_userinfo_matches(text):
        if match[3] is not None:
            if any(char.isdigit() for char in match[3]):
                yield match.span(3)
        elif not _PORT_OF_URL.match(match[2]) and not is_secret_placeholder(match[2]):
            yield match.span(2)


def _url_userinfo_matches(text: str) -> Iterator[re.Match[str]]:
    """The matches of `login:password@`, or of a long token, in the text's URLs.

    Each word is searched only up to its last `@`: where a password ends there, no other beginning has to be tried.
    """
    if "://" not in text:
        return
    for word in _UNQUOTED_WORD.finditer(text):
        start, end = word.start(), text.rfind("@", *word.span()) + 1
        while (start := text.find("://", start, max(start, end))) >= 0:
            match = _URL_USERINFO.match(text, start, end)
            if match:
                yield match
            start = match.end() if match else start + 3


def contains_secret(text: str) -> bool:
    """Whether a text holds anything that looks like a secret, whatever its name."""
    return (
        PRIVATE_KEY.search(text) is not None
        or any(True for _ in known_tokens(text))
        or any(True for _ in url_secret_spans(text))
        or any(
            not is_secret_placeholder(match[match.lastindex or 0])
            for each in _SECRETS_ON_COMMAND_LINES
            for match in each.finditer(text)
        )
    )


def may_contain_secret_names(text: str) -> bool:
    """Whether any key in a text can be a secret's name: a quick test that spares most large files the search."""
    lower = text.lower()
    return any(hint in lower for hint in _SECRET_NAME_HINTS)


@cache
def secret_kind(name: str) -> str | None:
    """`password` or `token` for a name that says its value is one: `DB_PASSWORD`, `hfToken`, `WANDB_API_KEY`.

    None for any other name: in `TOKEN_FILE` and `MAX_TOKENS` the last word says that the value is no secret.
    """
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    if not words:
        return None
    if _PASSWORD_WORD.fullmatch(words[-1]) and words != ["pwd"]:
        return "password"
    if words[-1] == "pass" and len(words) > 1 and words[-2] in _PASS_PREFIX_WORDS:
        return "password"
    if words[-1] in ("token", "secret", "apikey", "credential", "credentials"):
        return "token"
    if words[-1] == "key" and len(words) > 1 and words[-2] in _KEY_PREFIX_WORDS:
        return "token"
    return None


def possible_secret_kind(name: str) -> str | None:
    """As `secret_kind`, but by more names, for text that strangers will read: hiding one value too many is better than
    one too few."""
    return secret_kind(name.replace(".", "_")) or ("token" if _POSSIBLE_TOKEN_NAME.fullmatch(name) else None)


def name_hints_at_secret(name: str) -> bool:
    """Whether anything in a name suggests a secret: for other programs' files, from which no value that could be a
    secret is copied."""
    return possible_secret_kind(name) is not None or _SECRET_HINTING_NAME.search(name) is not None


def is_secret_value(name: str, text: str) -> bool:
    """Whether `text`, the value of `name`, is itself a secret: a password may be any word, a token must look like
    one."""
    kind = secret_kind(name)
    if kind is None or not text or is_secret_placeholder(text) or text.startswith(("/", "~/", "./")):
        return False
    return kind == "password" or _TOKEN_LIKE.fullmatch(text) is not None


def is_secret_placeholder(text: str) -> bool:
    """Whether a text only stands for a secret kept elsewhere: `***`, `$TOKEN`, `{{ token }}`, `<your token>`."""
    return _SECRET_PLACEHOLDER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret value, which prints as `***`; `source` says in words where it is from. `reveal()` is only for the
    environment file and the script that a node gets, and for the redactor."""

    _value: str
    source: str

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return f"Secret(*** from {self.source})"
