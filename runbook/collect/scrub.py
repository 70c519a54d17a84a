"""Takes secrets and names out of texts, JSON, JSON lines and YAML, and keeps their format: JSON stays JSON.

Secrets are the values that are known, and whatever looks like a secret. Lint must not give false alarms, but an archive
for a forum must not leak. So here a name that says `token` is enough, and its value may be anything but a number, a
word such as `true`, or a placeholder.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import yaml

from runbook.collect.pseudonyms import Machines, PeopleNames
from runbook.files.schema import load_schema
from runbook.files.yaml_document import Document, iterate_scalars, line_starts, parse_document
from runbook.model.decoded_text import decoded_views
from runbook.model.redact import Forms, merged_places, text_with_replacements
from runbook.model.secrets import (
    LOGIN_OF_CURL,
    LOGIN_OF_REGISTRY,
    LOGIN_OF_WANDB,
    PASSWORD_FOR_PROMPT,
    PRIVATE_KEY_BEGIN,
    is_secret_placeholder,
    known_tokens,
    may_contain_secret_names,
    possible_secret_kind,
    url_secret_spans,
)
from runbook.model.text_search import TextSpan

# --- where secrets stand in a text ----------------------------------------------------------------------------------

# Lengths of names and words are bounded: an unbounded pattern takes for ever on a line that is made for it.
_QUOTED_STRING = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.|'')*'"
_ASSIGNMENT = re.compile(
    r"(?<![\w.])(?<!\w-)(?P<name>[A-Za-z_][\w.-]{0,512})[\"'\]]{0,2}[^\S\n]*(?P<sign>=>|:=|==?|:)[^\S\n]*"
    rf"(?:[bru]{{0,2}}(?P<quoted>{_QUOTED_STRING})|(?P<bare>[\"']?[^\s\"']\S*))"
)
_COMMAND_OPTION = re.compile(
    r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]{0,128})(?:[\"']\s*,\s*|[^\S\n]+)"
    rf"(?:(?P<quoted>{_QUOTED_STRING})|(?P<bare>[^\s\"'-][^\s\"']*))"
)
_SETENV_COMMAND = re.compile(
    rf"\b(?:setenv|setx|ENV|config(?:ure)?[^\S\n]+set)[^\S\n]+(?P<name>[A-Za-z_]\w*)[^\S\n]+(?:(?P<quoted>{_QUOTED_STRING})|(?P<bare>[^\s\"']\S*))"
)
_NETRC_PASSWORD = re.compile(r"\blogin\s+\S+\s+password\s+(\S+)")
_SECRET_HTTP_HEADER = re.compile(
    r"\b(?:(?:Proxy-)?Authorization|(?:Set-)?Cookie2?|X-Auth-\w+"
    r"|X-[\w-]{0,64}(?:Token|Key|Secret))[\"']?[^\S\n]*[:=,][^\S\n]*"
    rf"(?:(?P<quoted>{_QUOTED_STRING})|(?P<bare>[^\n\"']+))",
    re.IGNORECASE,
)
_AUTHORIZATION_SCHEME = re.compile(r"\b(?:Bearer|Basic|Digest|ApiKey)\s+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_URL_QUERY_SECRET = re.compile(
    r"[?&;](?P<name>[\w.-]{0,64}(?:sig|signature|auth|code|key|session\w*))=(?P<bare>[^\s&\"'<>#]{12,})", re.IGNORECASE
)
_PRIVATE_KEY_END = re.compile(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=]|\\[nr]|[\s|>:,\[\]()\"'-])*")
_PRIVATE_KEY_BODY_REVERSED = re.compile(r"\s*[A-Za-z0-9+/=]{16,}(?:\s+[A-Za-z0-9+/=]{16,})*")
_PUTTY_KEY = re.compile(r"PuTTY-User-Key-File-[0-9](?:.*?\nPrivate-MAC:[^\n]*|.*)", re.DOTALL)
_MAX_PRIVATE_KEY_CHARACTERS = 64 * 1024
_HARMLESS_VALUE = re.compile(
    r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[a-zA-Z%]{0,3}|0[xX][0-9A-Fa-f]{1,8}|[\W_]*|.{1,2}"
)
_NON_SECRET_BEGINNINGS = (
    ("{", "[", "("),
    ("{env:",),
)  # [0]: how a token never begins; [1]: how a password hardly ever does


def must_scrub_value(name: str, value: str) -> bool:
    """Whether a value has to be taken out, by the name that it is given to."""
    kind = possible_secret_kind(name)
    if kind is None or not value or is_secret_placeholder(value):
        return False
    if kind == "token" and name.lower().endswith("auth"):
        # Not `auth: none`, nor `auth=publickey`.
        return re.fullmatch(r"(?=\S*\d)\S{12,}|[A-Za-z0-9+/]{16,}={0,2}", value) is not None
    return kind == "password" or _HARMLESS_VALUE.fullmatch(value) is None


def secret_text_spans(text: str) -> Iterator[TextSpan]:
    """The place of everything that looks like a secret."""
    for _, match in known_tokens(text):
        yield match.span()
    if "PRIVATE KEY" in text or "PuTTY-User" in text:
        yield from _private_key_spans(text)
    if "://" in text and "@" in text:
        yield from url_secret_spans(text)
    if "?" in text and "=" in text:
        yield from (match.span("bare") for match in _URL_QUERY_SECRET.finditer(text))
    for line, start in _lines_to_search(text):
        yield from ((start + first, start + last) for first, last in _secret_spans_in_line(line))


def _private_key_spans(text: str) -> Iterator[TextSpan]:
    """The place of every private key, also of one whose beginning or end is missing."""
    for match in _PUTTY_KEY.finditer(text):
        yield match.span()
    at = 0
    while begin := PRIVATE_KEY_BEGIN.search(text, at):
        end = _PRIVATE_KEY_END.search(text, begin.end(), begin.end() + _MAX_PRIVATE_KEY_CHARACTERS)
        body = _PRIVATE_KEY_BODY.match(text, begin.end())
        at = end.end() if end else body.end() if body else begin.end()
        yield begin.start(), at
    begun = 0
    for end in _PRIVATE_KEY_END.finditer(text):  # a log that begins in the middle of a key
        body = _PRIVATE_KEY_BODY_REVERSED.match(
            text[max(begun, end.start() - _MAX_PRIVATE_KEY_CHARACTERS) : end.start()][::-1]
        )
        begun = end.end()
        if body:
            yield end.start() - body.end(), end.end()


_SECRET_LINE_HINTS = re.compile(
    r"auth|cookie|bearer|basic |digest |apikey|jwt|session|x-\w|curl|wget|sshpass|sudo|login", re.IGNORECASE
)


def _lines_to_search(text: str) -> Iterator[tuple[str, int]]:
    """The lines that may hold a secret, each with its offset in the text: the other patterns are slow."""
    if not may_contain_secret_names(text) and not _SECRET_LINE_HINTS.search(text):
        return
    start = 0
    for line in text.split("\n"):
        if may_contain_secret_names(line) or _SECRET_LINE_HINTS.search(line):
            yield line, start
        start += len(line) + 1


def _secret_spans_in_line(line: str) -> Iterator[TextSpan]:
    """The places of secrets in a line, as offsets in it."""
    for pattern in (_COMMAND_OPTION, _SETENV_COMMAND):
        for match in pattern.finditer(line):
            yield from _secret_value_spans(match, match["name"], line)
    yield from _assigned_secret_spans(line)
    for match in _SECRET_HTTP_HEADER.finditer(line):
        yield from _unquoted_value_span(match)
    for match in _AUTHORIZATION_SCHEME.finditer(line):
        if any(char.isdigit() or char in "=._" for char in match[1]) or len(match[1]) >= 16:
            yield match.span(1)
    for pattern in (LOGIN_OF_CURL, LOGIN_OF_REGISTRY, LOGIN_OF_WANDB, _NETRC_PASSWORD):
        for match in pattern.finditer(line):
            if not is_secret_placeholder(match[1]):
                yield match.span(1)
    for match in PASSWORD_FOR_PROMPT.finditer(line):
        yield match.span(match.lastindex or 0)


def _assigned_secret_spans(line: str) -> Iterator[TextSpan]:
    """The secrets in assignments (`name=value`) of a line. A value that is no secret is searched for assignments as
    well: `args=--token=…`."""
    at = 0
    while match := _ASSIGNMENT.search(line, at):
        found = list(_secret_value_spans(match, match["name"], line))
        yield from found
        at = found[0][1] if found else match.end("sign")


def _secret_value_spans(match: re.Match[str], name: str, line: str) -> Iterator[TextSpan]:
    """The place of a matched value if it is a secret by its name."""
    for start, end in _unquoted_value_span(match):
        value = line[start:end]
        password = possible_secret_kind(name) == "password"
        if not must_scrub_value(name, value) or (match["bare"] and value.startswith(_NON_SECRET_BEGINNINGS[password])):
            continue
        if match["bare"] and match.groupdict().get("sign") == ":" and password:
            end = len(line.rstrip())  # a password may have blanks: `password: correct horse battery staple`
        yield start, end


def _unquoted_value_span(match: re.Match[str]) -> Iterator[TextSpan]:
    """The place of a matched value, without its quotes, or without the punctuation behind it; none if it is empty."""
    if match["quoted"] is not None:
        yield match.start("quoted") + 1, match.end("quoted") - 1
    else:
        end = match.start("bare") + len(match["bare"].rstrip(",;)}]\"'"))
        if end > match.start("bare"):
            yield match.start("bare"), end


# --- taking them out ------------------------------------------------------------------------------------------------

REDACTED_TEXT = "REDACTED"
"""What stands in place of a secret: a plain word, since `***` is no valid value in JSON, YAML, a shell and a URL."""

# Keys of `result.json` and `events.jsonl`, which stay even if a person or a machine has such a name.
_RUN_FILE_KEYS = frozenset(
    """version run_id playbook inventory verdict exit_code stopped_at seconds causes stages not_run nodes run_dir
    cleaned name check outcomes silent node proof metrics findings warnings cause says remedy evidence peers event
    time stage text rank data outcome hostname path size sha256 command code missing truncated files status all pass
    fail unknown skip plan world_size first_rank devices remedy_commands bad dropped not_dropped links gbps us round
    attempt number launcher logs ends processes started ended state why skew_s pace step epoch per_s age_s stall
    failed silent attempts job""".split()
)


class Scrubber:
    """Takes secrets and names out of texts. `learn` has to see all texts first: a word in one file may be the name of a
    person's home in another."""

    def __init__(self, secrets: Iterable[str] = (), *, hide_addresses: bool = False) -> None:
        self.people = PeopleNames()
        self.machines: Machines | None = Machines() if hide_addresses else None
        self.secrets_found = 0
        self._known = Forms(secrets)
        self._ours = _RUN_FILE_KEYS | _schema_keys()

    def learn(self, text: str) -> None:
        """Learn the names of people and machines in a text, in every encoding that it may hold."""
        for view in decoded_views(text):
            self.people.learn(view.text)
            if self.machines:
                self.machines.learn(view.text)

    # Texts.

    def text(self, text: str) -> str:
        """The text with every secret and name replaced, also inside of encoded parts."""
        gone: list[TextSpan] = []
        others: list[tuple[TextSpan, str]] = []
        for view in decoded_views(text):
            gone += self._known.find(view)
            gone += [view.raw(*place) for place in secret_text_spans(view.text)]
            others += [
                (_span_without_backslash(text, view.raw(*place)), other) for place, other in self._names(view.text)
            ]
        places = [(place, REDACTED_TEXT) for place in merged_places(gone)]
        self.secrets_found += sum(text[start:end] != REDACTED_TEXT for (start, end), _ in places)
        return _replace_secrets_and_names(text, places, others)

    def _names(self, text: str) -> Iterator[tuple[TextSpan, str]]:
        yield from self.people.find(text)
        if self.machines:
            yield from self.machines.find(text)

    # Texts with a structure.

    def json(self, text: str, *, indent: int | None = None) -> str:
        """A scrubbed JSON document; what is no JSON is scrubbed as a text."""
        try:
            return json.dumps(self.value(json.loads(text)), indent=indent)
        except (ValueError, RecursionError):
            return self.text(text)

    def json_lines(self, text: str) -> str:
        return "".join(self.json(line) + "\n" if line.strip() else "\n" for line in text.splitlines())

    def value(self, value: object, name: str = "") -> object:
        """The same structure with every text in it scrubbed; a value under a secret's name (`name` is the key above)
        is replaced as a whole."""
        if isinstance(value, dict):
            return {self.key(str(key)): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._item(value, at, name) for at in range(len(value))]
        if value is None or isinstance(value, bool):
            return value
        if must_scrub_value(name, str(value)):
            self.secrets_found += str(value) != REDACTED_TEXT
            return REDACTED_TEXT
        if isinstance(value, str) and (login := self.people.login(name, value)):
            return login
        return self.text(value) if isinstance(value, str) else value

    def _item(self, items: list[object], at: int, name: str) -> object:
        """An item of a list, scrubbed. After an option it is that option's value, as in `["--token", "abc"]`."""
        before = items[at - 1] if at else None
        if isinstance(before, str) and before.startswith("-") and isinstance(items[at], str):
            return self.value(items[at], before.lstrip("-"))
        return self.value(items[at], name)

    def key(self, key: str) -> str:
        """A key of a mapping, scrubbed unless it is one of our own keys."""
        return key if key in self._ours else self.text(key)

    def yaml(self, text: str, name: str) -> str:
        """The scrubbed source of a YAML file, with its comments; if that would not load any more, its scrubbed data
        without comments."""
        document = parse_document(text, name)
        if document.data is None:
            return self.text(text)
        places = list(_yaml_secret_spans(document))
        self.secrets_found += len(places)
        scrubbed = self._yaml_text(
            _replace_secrets_and_names(text, [(place, REDACTED_TEXT) for place in merged_places(places)], []), document
        )
        again = parse_document(scrubbed, name)
        if again.data is not None and not again.problems and _data_shape(again.data) == _data_shape(document.data):
            return scrubbed
        head = "# the comments are left out: with what had to be taken out, the file as it was written would not load\n"
        return head + yaml.safe_dump(self.value(document.data), sort_keys=False, allow_unicode=True, width=120)

    def _yaml_text(self, text: str, document: Document) -> str:
        """The source scrubbed as a text; empty if that would rename one of our own keys."""
        scrubbed = self.text(text)
        keys = {key for keys in document.key_spans for key in keys[-1:] if isinstance(key, str)}
        if not any(self.text(key) != key for key in keys & self._ours):
            return scrubbed
        return ""  # somebody's name is also a key of ours: only values may be replaced, which a text does not tell


def _schema_keys() -> frozenset[str]:
    """Every key that an inventory or a playbook can have."""

    def keys(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            properties = part.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            for inner in part.values():
                yield from keys(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from keys(inner)

    return frozenset(key for kind in ("inventory", "playbook") for key in keys(load_schema(kind)))


def _yaml_secret_spans(document: Document) -> Iterator[TextSpan]:
    """The places of the values of secret names in a YAML file, in any style: plain, quoted, or a block of lines."""
    starts = line_starts(document.text)
    for keys, value in iterate_scalars(document.data):
        name = next((key for key in reversed(keys) if isinstance(key, str)), "")
        if value is None or isinstance(value, bool) or not must_scrub_value(name, str(value)):
            continue
        extent = document.extent(*keys)
        if extent:
            (first, column), (last, after) = extent
            begin = starts[first - 1] + column - 1
            stop = starts[last - 1] + after - 1 if last <= len(starts) else len(document.text)
            yield begin, begin + len(document.text[begin:stop].rstrip())


def _data_shape(value: object) -> object:
    """The shape of data, which replacing texts does not change: keys may be renamed, but mappings and lists keep their
    lengths."""
    if isinstance(value, dict):
        return [_data_shape(item) for item in value.values()]
    if isinstance(value, list):
        return [_data_shape(item) for item in value] + ["list"]
    return None


def _span_without_backslash(text: str, place: TextSpan) -> TextSpan:
    """The place without a backslash in front that belongs to no escape, but to a path: `C:\\Users\\Émile`."""
    start, end = place
    escape = text[start] == "\\" and not text[start + 1 : start + 2].isascii()
    return (start + escape, end)


def _replace_secrets_and_names(text: str, gone: list[tuple[TextSpan, str]], others: list[tuple[TextSpan, str]]) -> str:
    """The text with its secrets (`gone`) and names (`others`) replaced. Of names that overlap, the earliest and longest
    counts; a name that overlaps a secret is taken out with it."""
    hidden = [place for place, _ in gone]
    while True:
        touching = [place for place, _ in others if _overlaps_any(place, hidden)]
        both = merged_places([*hidden, *touching])
        if both == hidden:
            break
        hidden = both
    chosen = [(place, REDACTED_TEXT) for place in hidden]
    last = 0
    for (start, end), other in sorted(others, key=lambda one: (one[0][0], -one[0][1])):
        if last <= start < end and not _overlaps_any((start, end), hidden):
            chosen.append(((start, end), other))
            last = end
    return text_with_replacements(text, sorted(chosen))


def _overlaps_any(place: TextSpan, ordered: list[TextSpan]) -> bool:
    """Whether a place shares a character with one of the `ordered` places, which do not overlap each other."""
    at = bisect_left(ordered, place)
    return any(place[0] < end and start < place[1] for start, end in ordered[max(0, at - 1) : at + 1])
