"""Quoting, judged by the shells themselves where they are: what goes in comes out, byte for byte. And what refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.launch import script
from runbook.launch.quote import CannotQuote, Literal, bat, dialect_of, ps1, sh

from .specs import TEXT
from .test_script import started

SHELLS = [shell for shell in ("dash", "bash", "busybox", "ksh", "mksh") if shutil.which(shell)]
AT_ONCE = examples(40)  # of sixty texts each: a shell for every text would take minutes
TEMPLATES = Path(script.__file__).with_name("templates")


def arguments(shell: str, text: str) -> list[bytes]:
    """What a program started by this script gets."""
    done = subprocess.run(started(shell), input=text.encode(), capture_output=True, check=True, timeout=120)
    return done.stdout.split(b"\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
@given(texts=st.lists(TEXT, min_size=60, max_size=60))
@AT_ONCE
def test_words(shell: str, texts: Sequence[str]) -> None:
    texts = [text for text in texts if not re.search("[\0\r\n\ud800-\udfff]", text)]
    line = r"printf '%s\0' x " + " ".join(sh.word(text) for text in texts)
    assert arguments(shell, line) == [b"x", *(text.encode() for text in texts)]


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
    assert arguments(shell, r"printf '%s\0' " + " ".join(map(sh.word, texts))) == [text.encode() for text in texts]


@pytest.mark.parametrize("module", [sh, bat, ps1])
@pytest.mark.parametrize("value", ["a\nb", "a\r", "\0", "\r\n", "\ud800", "x\udfff"])
def test_what_no_shell_carries_is_refused(module: Any, value: str) -> None:
    for name in ("word", "argument", "place", "folder", "line"):
        with pytest.raises(CannotQuote):
            getattr(module, name)(value)
    with pytest.raises(CannotQuote):
        module.setting("A", value)


@given(TEXT)
@examples(500)
def test_a_literal_is_one_line_of_what_its_file_can_hold(text: str) -> None:
    for module, dialect in ((sh, sh.DIALECT), (bat, bat.DIALECT), (ps1, ps1.DIALECT)):
        for name in ("word", "argument", "place", "folder"):
            try:
                literal = getattr(module, name)(text)
            except CannotQuote:
                continue
            assert type(literal) is dialect.literal
            assert not set(literal) & set("\0\r\n")
            dialect.encode(literal)


@given(TEXT)
@examples(500)
def test_in_a_batch_file_no_quote_closes_before_its_end(text: str) -> None:
    for filter_ in (bat.word, bat.argument, bat.place, bat.folder):
        try:
            literal = filter_(text)
        except CannotQuote:
            continue
        if re.fullmatch("/[A-Za-z0-9]+", literal):  # a switch, which cmd only knows without
            continue
        assert (literal[0], literal[-1], literal.count('"')) == ('"', '"', 2)
        rest = literal.replace("%_runbook_here%", "").replace("%USERPROFILE%", "")
        assert "%" not in rest.replace("%%", "")


@pytest.mark.parametrize("module", [sh, bat, ps1])
@pytest.mark.parametrize("good", ["A", "_a", "a1", "NCCL_DEBUG", "x" * 300])
def test_names(module: Any, good: str) -> None:
    assert module.name(good) == good


@pytest.mark.parametrize("module", [sh, bat, ps1])
@pytest.mark.parametrize("bad", ["", "1A", "A-B", "A B", "A=B", "A\n", "Ä", "A;id", "$A", "A\0", "A(x)", "²"])
def test_what_is_no_name_is_refused(module: Any, bad: str) -> None:
    with pytest.raises(CannotQuote):
        module.name(bad)


@pytest.mark.parametrize("name", ["IFS", "PPID", "UID", "_", "RANDOM", "SECONDS", "PWD", "SHELLOPTS", "runbook_here"])
def test_names_that_are_the_shells_own_are_refused(name: str) -> None:
    with pytest.raises(CannotQuote, match="own"):
        sh.setting(name, "x")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_other_name_is_the_shells_own(shell: str) -> None:
    """Every variable that a shell has by itself either arrives as we set it or is refused."""
    listed = subprocess.run(
        [*started(shell), "-c", "set; command -v compgen >/dev/null && compgen -v"],
        capture_output=True,
        text=True,
        check=False,
    )
    names = set(re.findall(r"^([A-Za-z_][A-Za-z0-9_]*)(?:=|$)", listed.stdout, re.MULTILINE)) | {
        "ENV",
        "CDPATH",
        "OPTARG",
        "PS4",
    }
    for name in names - sh.SHELL_VARIABLES:
        line = f"{sh.setting(name, 'x y')}\n/usr/bin/env -0"
        done = subprocess.run(
            [*started(shell), "-c", line], capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"}
        )
        assert f"{name}=x y".encode() in done.stdout.split(b"\0"), name


@pytest.mark.parametrize("name", ["ERRORLEVEL", "errorlevel", "CD", "Random", "_runbook_code", "_RUNBOOK_HERE"])
def test_names_that_are_cmds_own_are_refused(name: str) -> None:
    with pytest.raises(CannotQuote, match="own"):
        bat.setting(name, "x")


@pytest.mark.parametrize("module", [bat, ps1])
def test_on_windows_nothing_cannot_be_a_value(module: Any) -> None:
    with pytest.raises(CannotQuote, match="leave it out"):
        module.setting("A", "")
    with pytest.raises(CannotQuote, match="write -1"):
        module.setting("Cuda_Visible_Devices", "")


def test_on_linux_a_string_has_an_end() -> None:
    assert sh.setting("A", "x" * (sh.MAX_ARGUMENT_BYTES - 2))
    assert sh.word("é" * (sh.MAX_ARGUMENT_BYTES // 2))
    with pytest.raises(CannotQuote, match="131071 bytes"):
        sh.setting("A", "x" * (sh.MAX_ARGUMENT_BYTES - 1))
    with pytest.raises(CannotQuote, match="131071 bytes"):
        sh.word("é" * (sh.MAX_ARGUMENT_BYTES // 2 + 1))


def test_the_message_names_the_character_and_says_what_to_do() -> None:
    with pytest.raises(CannotQuote) as refused:
        bat.word('say "hi"')
    assert str(refused.value) == '\'say "hi"\' contains a double quote ("), which a .bat cannot carry: use `shell: ps1`'
    with pytest.raises(CannotQuote, match=r"contains '\\u6f22', and a .bat carries only ASCII"):
        bat.word("集漢"[1:])
    with pytest.raises(CannotQuote, match="control character '\\\\x1a'"):
        bat.word("a\x1ab")
    with pytest.raises(CannotQuote) as refused:
        bat.word("é" * 8000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("conda activate train", "call conda activate train"),
        ("call conda activate train", "call conda activate train"),
        ("CALL x.bat", "CALL x.bat"),
        ("@call x.bat", "@call x.bat"),
        ('set "A=1"', 'set "A=1"'),
        ("if exist x.bat call x.bat", "if exist x.bat call x.bat"),
        ("setup.bat", "call setup.bat"),
        ("C:\\venv\\Scripts\\activate.bat", "call C:\\venv\\Scripts\\activate.bat"),
        ('"C:\\my venv\\activate.bat"', 'call "C:\\my venv\\activate.bat"'),
        ("cd.bat", "call cd.bat"),
        ("@setup.bat", "@call setup.bat"),
        ("(setup.bat)", "(call setup.bat)"),
        ("cd /d D:\\x && conda activate train", "cd /d D:\\x && call conda activate train"),
        ('set "A=1&b"& act.bat||exit /b 1', 'set "A=1&b"& call act.bat||exit /b 1'),
        ("act.bat >nul 2>&1 && act ^& x", "call act.bat >nul 2>&1 && call act ^& x"),
        ("call a.bat &&call b.bat & c", "call a.bat &&call b.bat & call c"),
        ('if exist "C:\\a b\\x.bat" (x.bat) & y', 'if exist "C:\\a b\\x.bat" (call x.bat) & call y'),
        ("IF NOT DEFINED CONDA_EXE conda activate x", "IF NOT DEFINED CONDA_EXE call conda activate x"),
        ('if /i "%A%"=="b c" act', 'if /i "%A%"=="b c" call act'),
        ("if exist x.bat set X=1", "if exist x.bat set X=1"),
        ("for %%V in (a b) do if exist %%V.bat %%V", "for %%V in (a b) do if exist %%V.bat call %%V"),
        ("for-us.bat", "call for-us.bat"),
    ],
)
def test_a_batch_file_that_activates_is_called(line: str, written: str) -> None:
    assert bat.line(line) == written


@pytest.mark.parametrize(("module", "line"), [(sh, "act \\"), (bat, "act ^"), (bat, "act ^ "), (ps1, "act `")])
def test_an_activate_line_that_would_go_on_is_refused(module: Any, line: str) -> None:
    with pytest.raises(CannotQuote, match=r"next line|goes on"):
        module.line(line)


@given(st.text())
def test_a_comment_stays_on_its_line(text: str) -> None:
    for module in (sh, bat, ps1):
        made = module.comment(text)
        assert len(made) == len(text)
        assert made.isprintable()
    assert not set(bat.comment(text)) & set('%^&|<>!"()')


def printed(shell: str, template: str, **values: object) -> str:
    return script._jinja_environment(shell).from_string(template).render(**values)


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
@pytest.mark.parametrize(
    "template",
    [
        "{{ value }}",
        "{{ 'constant' }}",
        "{{ value | word ~ 'x' }}",
        "{{ value | word | upper }}",
        "{{ (value | word) + value }}",
        "{{ 1 }}",
        "{{ none }}",
        "{{ value | word | replace('a', 'b') }}",
        "{{ (value | word)[1:] }}",
    ],
)
def test_a_template_that_prints_what_was_not_quoted_is_refused(shell: str, template: str) -> None:
    with pytest.raises(TypeError, match="without quoting"):
        printed(shell, template, value="a")


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_what_was_quoted_for_another_shell_or_for_none_is_refused(shell: str) -> None:
    for other in (sh.word("a"), bat.word("a"), ps1.word("a"), Literal("a")):
        if type(other) is dialect_of(shell).literal:
            assert printed(shell, "{{ value }}", value=other) == other
        else:
            with pytest.raises(TypeError, match="for this shell"):
                printed(shell, "{{ value }}", value=other)


@pytest.mark.parametrize(
    "template", ["{{ nobody }}", "{{ nobody | word }}", "{% if nobody %}x{% endif %}", "{{ v.no | word }}"]
)
def test_a_template_with_an_unknown_name_is_refused(template: str) -> None:
    for shell in ("sh", "bat", "ps1"):
        with pytest.raises(jinja2.UndefinedError):
            printed(shell, template, v="a")


def test_what_was_quoted_is_printed() -> None:
    assert printed(
        "sh", "{{ k | setting(v) }} {{ l | line }} # {{ c | comment }}", k="A", v="x y", l="a && b", c="\n"
    ) == ("export A='x y' 'a && b' # ?")
    assert printed("bat", "{{ k | setting(v) }}", k="A", v="100%") == 'set "A=100%%"'
    assert printed("ps1", "{{ k | setting(v) }}", k="A", v="it's") == "$env:A = 'it''s'"


def expressions(shell: str) -> Iterator[tuple[str, str, str, str]]:
    """Every printed expression of a template: the text before and after it on its line, and its last filter."""
    for line in (TEMPLATES / f"launch.{shell}.j2").read_text().splitlines():
        bare = re.sub(r"\{%.*?%\}", "", line)
        for found in re.finditer(r"\{\{(.*?)\}\}", bare):
            before = re.sub(r"\{\{.*?\}\}", "", bare[: found.start()])
            after = re.sub(r"\{\{.*?\}\}", "", bare[found.end() :])
            last = found[1].rpartition("|")[2].partition("(")[0].strip()
            yield before, after, last, line


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_no_value_stands_inside_quotes_or_outside_its_filter(shell: str) -> None:
    dialect = dialect_of(shell)
    comments = {"sh": r"\s*#", "bat": r"rem ", "ps1": r"\s*#"}[shell]
    count = 0
    for before, _, last, line in expressions(shell):
        count += 1
        assert last in dialect.filters, line
        if re.match(comments, before):
            assert last == "comment", line
            continue
        assert last != "comment", line
        for quote in ('"',) if shell == "bat" else ("'", '"'):
            outside = before if quote == '"' else re.sub(r'"[^"]*"', "", before)
            outside = outside if quote == "'" else re.sub(r"'[^']*'", "", outside)
            assert outside.count(quote) % 2 == 0, line
    assert count > 20
