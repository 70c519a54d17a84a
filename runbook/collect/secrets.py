"""Where secrets stand in a text: values that are known, and whatever looks like one.

Lint must not cry wolf; an archive for a forum must not leak. So here a name that says `token` is enough, and the value
may look like anything but a number, a word such as `true`, or a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.model.secret_formats import (
    LOGIN_OF_CURL,
    TYPED_FOR_A_PROMPT,
    known_tokens,
    may_name_secrets,
    names_secret,
    stands_for_one,
)

Place = tuple[int, int]

# Names and words are as long as anybody's, not longer: what has no bound takes for ever on a line made to take for ever.
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.|'')*'"
_ASSIGNED = re.compile(
    r"(?<![\w.])(?<!\w-)(?P<name>[A-Za-z_][\w.-]{0,512})[\"'\]]{0,2}[^\S\n]*(?P<sign>=>|:=|==?|:)[^\S\n]*"
    rf"(?:[bru]{{0,2}}(?P<quoted>{_QUOTED})|(?P<bare>[^\s\"']\S*))"
)
_FLAG = re.compile(
    r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]{0,128})(?:[\"']\s*,\s*|[^\S\n]+)"
    rf"(?:(?P<quoted>{_QUOTED})|(?P<bare>[^\s\"'-][^\s\"']*))"
)
_SET = re.compile(
    rf"\b(?:setenv|ENV)[^\S\n]+(?P<name>[A-Za-z_]\w*)[^\S\n]+(?:(?P<quoted>{_QUOTED})|(?P<bare>[^\s\"']\S*))"
)
_NETRC = re.compile(r"\blogin\s+\S+\s+password\s+(\S+)")
_HEADER = re.compile(
    r"\b(?:(?:Proxy-)?Authorization|(?:Set-)?Cookie2?|X-Auth-\w+|X-[\w-]{0,64}(?:Token|Key|Secret))[\"']?[^\S\n]*[:=,][^\S\n]*"
    rf"(?:(?P<quoted>{_QUOTED})|(?P<bare>[^\n\"']+))",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(?:Bearer|Basic|Digest|ApiKey)\s+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_USERINFO = re.compile(r"://([^\s/:@\"'<>]*):([^\s\"'<>]+)@|://([^\s/:@\"'<>]{16,})@")
_WORD = re.compile(r"[^\s\"'<>]+")
_QUERY = re.compile(
    r"[?&;](?P<name>[\w.-]{0,64}(?:sig|signature|auth|code|key|session\w*))=(?P<bare>[^\s&\"'<>#]{12,})", re.IGNORECASE
)
_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"(?:[A-Za-z0-9+/=]|\\[nr]|[\s|>:,\[\]()\"'-])*")
_BODY_BACKWARDS = re.compile(r"\s*[A-Za-z0-9+/=]{16,}(?:\s+[A-Za-z0-9+/=]{16,})*")
_PUTTY = re.compile(r"PuTTY-User-Key-File-[0-9](?:.*?\nPrivate-MAC:[^\n]*|.*)", re.DOTALL)
_LONGEST_KEY = 64 * 1024
_HARMLESS = re.compile(
    r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[a-zA-Z%]{0,3}|0[xX][0-9A-Fa-f]{1,8}|[\W_]*|.{1,2}"
)
_OPENS = (("{", "[", "("), ("{env:",))  # what a token never begins with, and what a password seldom does
_MORE_NAMES = re.compile(r"(?i)\A(?:.*[._-])?(?:jwt|cookies?|session_?id|authorization|auth)")


def secret_name(name: str) -> str | None:
    """`password`, `token`, or None: what the value under this name would be."""
    return names_secret(name.replace(".", "_")) or ("token" if _MORE_NAMES.fullmatch(name) else None)


def is_secret(name: str, value: str) -> bool:
    """Whether the value under such a name has to go."""
    kind = secret_name(name)
    if kind is None or not value or stands_for_one(value):
        return False
    if kind == "token" and name.lower().endswith("auth"):
        return (
            re.fullmatch(r"(?=\S*\d)\S{12,}|[A-Za-z0-9+/]{16,}={0,2}", value) is not None
        )  # `auth: none`, `auth=publickey`
    return kind == "password" or _HARMLESS.fullmatch(value) is None


def looks(text: str) -> Iterator[Place]:
    """Every place of something that looks like a secret."""
    for _, match in known_tokens(text):
        yield match.span()
    if "PRIVATE KEY" in text or "PuTTY-User" in text:
        yield from _private_keys(text)
    if "://" in text and "@" in text:
        yield from _in_urls(text)
    if "?" in text and "=" in text:
        yield from (match.span("bare") for match in _QUERY.finditer(text))
    for line, start in _lines_of_interest(text):
        yield from ((start + first, start + last) for first, last in _in_line(line))


def _private_keys(text: str) -> Iterator[Place]:
    for match in _PUTTY.finditer(text):
        yield match.span()
    at = 0
    while begin := _BEGIN.search(text, at):
        end = _END.search(text, begin.end(), begin.end() + _LONGEST_KEY)
        body = _BODY.match(text, begin.end())
        at = end.end() if end else body.end() if body else begin.end()
        yield begin.start(), at
    begun = 0
    for end in _END.finditer(text):  # a log that begins in the middle of a key
        body = _BODY_BACKWARDS.match(text[max(begun, end.start() - _LONGEST_KEY) : end.start()][::-1])
        begun = end.end()
        if body:
            yield end.start() - body.end(), end.end()


def _in_urls(text: str) -> Iterator[Place]:
    for match in _userinfos(text):
        if match[3] is not None:
            if any(char.isdigit() for char in match[3]):
                yield match.span(3)
        elif not re.match(r"[0-9]{1,5}(?:[/,?#]|$)", match[2]) and not stands_for_one(match[2]):
            yield match.span(2)


def _userinfos(text: str) -> Iterator[re.Match[str]]:
    """Only up to the last `@` of a word: where a password ends there, no other beginning has to be tried."""
    if "://" not in text:
        return
    for word in _WORD.finditer(text):
        start, end = word.start(), text.rfind("@", *word.span()) + 1
        while (start := text.find("://", start, max(start, end))) >= 0:
            match = _USERINFO.match(text, start, end)
            if match:
                yield match
            start = match.end() if match else start + 3


_HINTS = re.compile(
    r"auth|cookie|bearer|basic |digest |apikey|jwt|session|x-\w|curl|wget|sshpass|sudo|login", re.IGNORECASE
)


def _lines_of_interest(text: str) -> Iterator[tuple[str, int]]:
    if not may_name_secrets(text) and not _HINTS.search(text):
        return
    start = 0
    for line in text.split("\n"):
        if may_name_secrets(line) or _HINTS.search(line):
            yield line, start
        start += len(line) + 1


def _in_line(line: str) -> Iterator[Place]:
    for pattern in (_FLAG, _SET):
        for match in pattern.finditer(line):
            yield from _value(match, match["name"], line)
    yield from _assigned(line)
    for match in _HEADER.finditer(line):
        yield from _inside(match)
    for match in _SCHEME.finditer(line):
        if any(char.isdigit() or char in "=._" for char in match[1]) or len(match[1]) >= 16:
            yield match.span(1)
    for pattern in (LOGIN_OF_CURL, _NETRC):
        for match in pattern.finditer(line):
            if not stands_for_one(match[1]):
                yield match.span(1)
    for match in TYPED_FOR_A_PROMPT.finditer(line):
        yield match.span(match.lastindex or 0)


def _assigned(line: str) -> Iterator[Place]:
    """`name=value` one after the other; what is no secret's may hold one: `args=--token=…`."""
    at = 0
    while match := _ASSIGNED.search(line, at):
        found = list(_value(match, match["name"], line))
        yield from found
        at = found[0][1] if found else match.end("sign")


def _value(match: re.Match[str], name: str, line: str) -> Iterator[Place]:
    for start, end in _inside(match):
        value = line[start:end]
        if not is_secret(name, value) or (match["bare"] and value.startswith(_OPENS[secret_name(name) == "password"])):
            continue
        if match["bare"] and match.groupdict().get("sign") == ":" and secret_name(name) == "password":
            end = len(line.rstrip())  # `password: correct horse battery staple`
        yield start, end


def _inside(match: re.Match[str]) -> Iterator[Place]:
    """The value without its quotes, or without the punctuation behind it."""
    if match["quoted"] is not None:
        yield match.start("quoted") + 1, match.end("quoted") - 1
    else:
        end = match.start("bare") + len(match["bare"].rstrip(",;)}]\"'"))
        if end > match.start("bare"):
            yield match.start("bare"), end
