"""The redactor, which takes every secret of the run out of everything that is shown or kept.

A secret is found however it is written: in the encodings that `View`s undo (JSON, URLs, shells, Python, HTML,
colours), and in the forms below, which they do not undo. Tokens of well-known formats are taken out as well, even
if they are no known secrets. The cost is linear in the text, whatever the number of secrets."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from runbook.model.decoded_text import JOINT_CHARACTERS, View, decoded_views, fully_decoded_text, unquoted_view
from runbook.model.inventory import Inventory
from runbook.model.remedy import Remedy
from runbook.model.secrets import Secret, is_secret_value, known_tokens
from runbook.model.text_search import TextSpan

T = TypeVar("T")

MIN_SECRET_CHARACTERS = 4
"""Shorter values are not looked for in text: `1` or `on` would turn every other word into stars."""

SECRET_MASK = "***"
"""The text that stands in the place of a secret."""

_MAX_FORMS_WITHOUT_INDEX = 200
"""Up to so many forms are searched for one by one, each as fast as memory is read; more of them are looked up by their
first MIN_SECRET_CHARACTERS characters."""

_MAX_TOKEN_CHARACTERS = 4096
"""Characters of a token of a known format; a stream holds back at most so many for one."""
_TOKEN_CHARACTERS = string.ascii_letters + string.digits + "_.-"
_MAX_ENCODED_CHARACTER_WIDTH = 16
"""The most characters that one character of a secret may take where it is written: `\\\\\\\\u00e9`, JSON in JSON."""

_JOINT_REMOVAL = {ord(char): None for char in JOINT_CHARACTERS}
_BASE64_CHARACTERS = frozenset(string.ascii_letters + string.digits + "+/-_")
_MIN_WRAPPED_LINE_CHARACTERS = 60
_BASE64_LINE = re.compile(r"^[A-Za-z0-9+/_-]{4,}(?=={0,2}\r?$)", re.MULTILINE)
"""A line of base64. In wrapped base64 every line but the last has at least `_MIN_WRAPPED_LINE_CHARACTERS`
characters."""
_DOUBLED_QUOTES = ("'\u2018\u2019\u201a\u201b", '"\u201c\u201d\u201e', "%", "`")
_CMD_SPECIAL_CHARACTER = re.compile(r'([&|<>^"%!()])')


def is_searchable_secret(text: str) -> bool:
    """Whether a value is long enough to be searched for: a shorter one is found in ordinary words."""
    return len(text.strip()) >= MIN_SECRET_CHARACTERS


def short_secret_text(source: str) -> str:
    """The warning about a secret that cannot be masked because it is too short."""
    return f"{source} is too short to be masked safely: it is shown as it is"


class Forms:
    """The forms in which known secrets may be written: as they are, encoded as a whole, with quotes doubled for a
    shell, in pieces. `find` tells where they stand in a view of a text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {text for text in secrets if is_searchable_secret(text)}
        forms: dict[str, tuple[bool, bool]] = {}
        for text in known:
            for form, before, after in _secret_forms(text):
                if is_searchable_secret(form):
                    forms.setdefault(form, (before, after))
        self._forms = dict(sorted(forms.items(), key=lambda item: len(item[0]), reverse=True))
        read = {view.text for text in known for view in decoded_views(text)}
        bare = {text.translate(_JOINT_REMOVAL) for text in read}
        self._bare = {text: (False, False) for text in bare if is_searchable_secret(text)}
        self._lengths: dict[str, set[int]] = {}  # by first characters, the lengths of forms; empty if forms are few
        for form in (*self._forms, *self._bare) if len(self._forms) > _MAX_FORMS_WITHOUT_INDEX else ():
            self._lengths.setdefault(form[:MIN_SECRET_CHARACTERS], set()).add(len(form))
        self.longest = max(map(len, known), default=0)
        # A line of wrapped base64 may end with the beginning of a secret's base64, or begin with its end.
        self._coded = [form for text in known for form, _, _ in _base64_forms(text)]
        self._by_head: dict[str, list[str]] = {}  # forms of `_coded` by their first characters
        self._by_tail: dict[str, list[str]] = {}  # and by their last characters
        for form in self._coded:
            self._by_head.setdefault(form[:MIN_SECRET_CHARACTERS], []).append(form)
            self._by_tail.setdefault(form[-MIN_SECRET_CHARACTERS:], []).append(form)
        self._longest_coded = max(map(len, self._coded), default=0)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def find(self, view: View) -> Iterator[TextSpan]:
        """The places of secrets, in the original text of the view."""
        for start, end in self._in(view.text, self._forms):
            yield view.raw(start, end)
        for start, end in self._wrapped(view.text):
            yield view.raw(start, end)
        if self._bare and any(joint in view.text for joint in JOINT_CHARACTERS):
            bare = unquoted_view(view)
            for start, end in self._in(bare.text, self._bare):
                yield bare.raw(start, end)

    def _wrapped(self, text: str) -> Iterator[TextSpan]:
        """The places of parts of secrets in base64 that is wrapped into lines, as programs write it."""
        for line in _BASE64_LINE.finditer(text):
            word, (start, end) = line[0], line.span()
            if tail := self._tail(word):
                yield start, start + tail
            if len(word) < _MIN_WRAPPED_LINE_CHARACTERS:
                continue
            if head := self._head(word):
                yield end - head, end
            if any(word in form for form in self._coded):
                yield start, end

    def _tail(self, word: str) -> int:
        """How many of the word's first characters are the end of a secret's base64; 0 for fewer than
        MIN_SECRET_CHARACTERS."""
        for length in range(min(len(word), self._longest_coded), MIN_SECRET_CHARACTERS - 1, -1):
            forms = self._by_tail.get(word[length - MIN_SECRET_CHARACTERS : length], ())
            if any(form.endswith(word[:length]) for form in forms):
                return length
        return 0

    def _head(self, word: str) -> int:
        """How many of the word's last characters are the beginning of a secret's base64; 0 for fewer than
        MIN_SECRET_CHARACTERS."""
        for start in range(max(0, len(word) - self._longest_coded), len(word) - MIN_SECRET_CHARACTERS + 1):
            forms = self._by_head.get(word[start : start + MIN_SECRET_CHARACTERS], ())
            if any(form.startswith(word[start:]) for form in forms):
                return len(word) - start
        return 0

    def _in(self, text: str, forms: Mapping[str, tuple[bool, bool]]) -> Iterator[TextSpan]:
        for start, form in self._starts(text, forms):
            before, after = forms[form]
            end = start + len(form)
            # In base64 the characters beside a form may hold some bits of the secret as well.
            start -= before and start > 0 and text[start - 1] in _BASE64_CHARACTERS
            yield start, end + (after and end < len(text) and text[end] in _BASE64_CHARACTERS)

    def _starts(self, text: str, forms: Mapping[str, object]) -> Iterator[tuple[int, str]]:
        if not self._lengths:
            for form in forms:
                at = text.find(form)
                while at >= 0:
                    yield at, form
                    at = text.find(form, at + len(form))
            return
        for at in range(len(text) - MIN_SECRET_CHARACTERS + 1):
            for length in self._lengths.get(text[at : at + MIN_SECRET_CHARACTERS], ()):
                if (form := text[at : at + length]) in forms:
                    yield at, form


def _secret_forms(text: str) -> Iterator[tuple[str, bool, bool]]:
    """(form, before, after) for each way of writing the secret that views do not undo, and the plain ones. `before` and
    `after`: whether the character before or behind the form holds bits of the secret as well."""
    plain = {text, fully_decoded_text(text), *(view.text for view in decoded_views(text))}
    plain |= {view.text[:-1] for view in decoded_views(f"{text} ")}  # a backslash at its end escapes the next character
    plain |= {re.sub(f"([{quotes}])", r"\1\1", text) for quotes in _DOUBLED_QUOTES}
    plain |= {_CMD_SPECIAL_CHARACTER.sub(r"^\1", text), text.replace(" ", "+"), "\0".join(text)}
    yield from ((form, False, False) for form in plain)
    for data in _utf8_and_utf16(text):
        for joint in ("", ":", " ", "-"):
            digits = data.hex(joint) if joint else data.hex()
            yield from ((form, False, False) for form in (digits, digits.upper()))
    yield from _base64_forms(text)


def _base64_forms(text: str) -> Iterator[tuple[str, bool, bool]]:
    """The forms in base64, as `_secret_forms` gives them; a text may begin at any of three places in a group of
    base64."""
    for data in _utf8_and_utf16(text):
        for offset in range(3):
            first, last = -(-8 * offset // 6), 8 * (offset + len(data)) // 6
            coded = base64.b64encode(b"\0" * offset + data + b"\0" * 3).decode()[first:last]
            for form in (coded, coded.replace("+", "-").replace("/", "_")):
                yield form, offset > 0, (offset + len(data)) % 3 > 0


def _utf8_and_utf16(text: str) -> tuple[bytes, bytes]:
    return text.encode("utf-8", "surrogatepass"), text.encode("utf-16-le", "surrogatepass")


class Redactor:
    """Replaces each secret by `***`: in strings, in values that hold strings, and in streams of text."""

    def __init__(self, values: Iterable[object]) -> None:
        self._texts = {value.reveal() for value in values if isinstance(value, Secret)}
        self._forms = Forms(self._texts)
        self.longest = _MAX_ENCODED_CHARACTER_WIDTH * self._forms.longest
        """The most characters that a secret can take, however it is written."""

    def __bool__(self) -> bool:
        return bool(self._forms)

    def joined_with(self, other: Redactor) -> Redactor:
        """A redactor that replaces the secrets of both."""
        return Redactor(Secret(text, "") for text in self._texts | other._texts)

    def text(self, text: str) -> str:
        return text_with_replacements(text, ((place, SECRET_MASK) for place in self.places(text)))

    def places(self, text: str) -> list[TextSpan]:
        """The places of secrets and of known tokens in the text, in order, without overlaps."""
        found: list[TextSpan] = []
        for view in decoded_views(text):
            if self._forms:
                found += self._forms.find(view)
            found += (view.raw(*match.span()) for _, match in known_tokens(view.text))
        return merged_places(found)

    def cut(self, text: str) -> int:
        """How many characters of an unfinished text may be passed on: the rest may be the beginning of a secret."""
        last = text[-_MAX_TOKEN_CHARACTERS:]
        safe = len(text) - max(self.longest, len(last) - len(last.rstrip(_TOKEN_CHARACTERS)))
        if safe <= 0:
            return 0
        across = next(((start, end) for start, end in self.places(text) if start < safe < end), None)
        return safe if across is None else across[0] or across[1]

    def stream(self) -> RedactedStream:
        return RedactedStream(self)

    def anything(self, value: T) -> T:
        """The value with every string in it redacted, in dataclasses, dicts, lists and tuples as well."""
        found: T = self._any(value)
        return found

    def _any(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return value
        if isinstance(value, Remedy):
            return Remedy(*self._any(value.steps), text=self.text(value))
        if isinstance(value, str):
            return self.text(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: self._any(getattr(value, field.name)) for field in fields(value)})
        if isinstance(value, dict):
            return {self._any(key): self._any(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._any(item) for item in value)
        return value


class RedactedStream:
    """Redacts text that comes in pieces, cut anywhere. It passes on whole lines at once; of a long line without an end,
    it holds back only the part that may be the beginning of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def take(self, text: str) -> str:
        """The redacted text that may be passed on once this piece has come."""
        text = self._held + text
        end = text.rfind("\n") + 1
        # Only once twice the most that may be held has come, so that text is not searched again and again.
        if len(text) - end > 2 * max(self._redactor.longest, _MAX_TOKEN_CHARACTERS):
            end += self._redactor.cut(text[end:])
        self._held = text[end:]
        return self._redactor.text(text[:end])

    def end(self) -> str:
        """The redacted rest of the text, at its end."""
        text, self._held = self._held, ""
        return self._redactor.text(text)


def merged_places(places: Iterable[TextSpan]) -> list[TextSpan]:
    """The places in order, those that overlap merged; empty places are dropped."""
    found: list[TextSpan] = []
    for start, end in sorted(places):
        if start >= end:
            continue
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def text_with_replacements(text: str, words: Iterable[tuple[TextSpan, str]]) -> str:
    """The text with each place replaced by its word; the places are in order and do not overlap."""
    parts, at = list[str](), 0
    for (start, end), word in words:
        parts += [text[at:start], word]
        at = end
    return "".join([*parts, text[at:]])


def inventory_secrets(inventory: Inventory) -> list[Secret]:
    """Every secret that an inventory names or holds. The value is empty where it is not set here."""
    return environment_secrets(inventory.env, *(given for node in inventory.nodes for given in (node.env, node.vars)))


def known_inventory_secrets(inventory: Inventory) -> list[Secret]:
    """Every secret that an inventory names or holds and whose value is known."""
    return [secret for secret in inventory_secrets(inventory) if secret.reveal()]


def environment_secrets(*environments: Mapping[str, object]) -> list[Secret]:
    """The secrets of environments: values from `{env: NAME}`, and values written in the file whose names say that they
    are secrets."""
    found: list[Secret] = []
    for environment in environments:
        for name, value in environment.items():
            if isinstance(value, Secret):
                found.append(value)
            elif isinstance(value, str) and is_secret_value(name, value):
                found.append(Secret(value, f"the value of {name}"))
    return list(dict.fromkeys(found))
