"""Quoting, judged by the shells themselves: what goes in comes out, byte for byte."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.launch import quote, render

SHELLS = [shell for shell in ("sh", "dash", "bash", "ksh", "mksh") if shutil.which(shell)]
NASTY = "'\"\\$`!&|;<>(){}[]*?#~=%^, \t\x01\x1b\x7f-\x85\u2018\u2028é漢🚀"
TEXTS = st.lists(
    st.text(
        st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n")),
        max_size=12,
    ),
    min_size=20,
    max_size=20,
)
AT_ONCE = settings(max_examples=25, deadline=None)  # of twenty texts each: a shell for every text would take minutes


def arguments(shell: str, script: str) -> list[bytes]:
    """What a program started by this script gets."""
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True, timeout=10)
    return done.stdout.split(b"\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
@given(texts=TEXTS)
@AT_ONCE
def test_words(shell: str, texts: Sequence[str]) -> None:
    script = r"printf '%s\0' " + " ".join(quote.sh(text) for text in texts)
    assert arguments(shell, script) == [text.encode() for text in texts]


@pytest.mark.parametrize("shell", SHELLS)
def test_words_that_were_once_trouble(shell: str) -> None:
    texts = [
        "",
        " ",
        "'",
        "''",
        "a'b",
        "$(id)",
        "`id`",
        "~",
        "~root",
        "-n",
        "--",
        "*",
        "{a,b}",
        "!!",
        "\\",
        "\\n",
        "#x",
    ]
    texts += ["a=b", "=ls", "%s", "$'x'", "\ufeff", "\u2019", "x" * 100_000]
    script = r"printf '%s\0' " + " ".join(quote.sh(text) for text in texts)
    assert arguments(shell, script) == [text.encode() for text in texts]


@pytest.mark.parametrize("value", ["a\nb", "a\r", "\0", "\r\n"])
def test_what_no_shell_carries_is_refused(value: str) -> None:
    for filter_ in (quote.sh, quote.raw):
        with pytest.raises(quote.CannotQuote):
            filter_(value)


@given(st.text())
def test_sh_gives_one_line_or_refuses(text: str) -> None:
    try:
        quoted = quote.sh(text)
    except quote.CannotQuote:
        assert set(text) & set("\0\r\n")
    else:
        assert not set(quoted) & set("\0\r\n")


@pytest.mark.parametrize("good", ["A", "_", "a1", "NCCL_DEBUG", "x" * 300])
def test_names(good: str) -> None:
    assert quote.name(good) == good


@pytest.mark.parametrize("bad", ["", "1A", "A-B", "A B", "A=B", "A\n", "Ä", "A;id", "$A", "A\0"])
def test_what_is_no_name_is_refused(bad: str) -> None:
    with pytest.raises(quote.CannotQuote):
        quote.name(bad)


@given(st.text())
def test_a_comment_stays_on_its_line(text: str) -> None:
    made = quote.comment(text)
    assert len(made) == len(text)
    assert made.isprintable()


def printed(template: str, **values: object) -> str:
    return render._templates().from_string(template).render(**values)


@pytest.mark.parametrize(
    "template",
    [
        "{{ value }}",
        "{{ 'constant' }}",
        "{{ value | sh ~ 'x' }}",
        "{{ value | sh | upper }}",
        "{{ (value | sh) + value }}",
        "{{ 1 }}",
        "{{ none }}",
        "{{ value | sh | replace('a', 'b') }}",
    ],
)
def test_a_template_that_prints_what_was_not_quoted_is_refused(template: str) -> None:
    with pytest.raises(TypeError, match="without quoting"):
        printed(template, value="a")


def test_a_template_with_an_unknown_name_is_refused() -> None:
    for template in ("{{ nobody }}", "{{ nobody | sh }}", "{% if nobody %}x{% endif %}", "{{ value.nothing | sh }}"):
        with pytest.raises(jinja2.UndefinedError):
            printed(template, value="a")


def test_what_was_quoted_is_printed() -> None:
    assert printed(
        "export {{ k | name }}={{ v | sh }} {{ l | raw }} # {{ c | comment }}", k="A", v="x y", l="a && b", c="\n"
    ) == ("export A='x y' a && b # ?")
