"""PowerShell scripts. No PowerShell is at hand, so a real parser of the language says what their literals are, this
file decodes them by the language's rules, and what the script computes from them is computed here by its own patterns.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.launch.preconditions import RENDEZVOUS_PROBE, Guards
from runbook.launch.quote import CannotQuote, Word, ps1
from runbook.launch.script import make_script
from runbook.model.secrets import Secret

from .specs import TEXT, ranks, spec
from .wine import Wine, got

GUARDS = Guards("python", "gpu-1", 29500, True)


@functools.cache
def parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))


def parsed(data: bytes) -> tree_sitter.Node:
    """The script's tree, without a single error in it, and the form that PowerShell 5.1 wants of a file."""
    assert data.startswith(b"\xef\xbb\xbf")
    text = data[3:]
    assert text.count(b"\n") == text.count(b"\r\n") == text.count(b"\r")
    root = parser().parse(text).root_node
    wrong = [node for node in nodes(root) if node.is_error or node.is_missing]
    assert not wrong, [(node.start_point, node.text) for node in wrong]
    return root


def nodes(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def text_of(node: tree_sitter.Node) -> str:
    assert node.text is not None
    return node.text.decode()


def decoded(literal: str) -> str:
    """What PowerShell makes of a single-quoted literal: any of five quotes ends it, unless another one follows."""
    quotes = "'\u2018\u2019\u201a\u201b"
    assert literal[0] == literal[-1] == "'"
    assert len(literal) > 1
    content, at = "", 1
    while at < len(literal) - 1:
        if literal[at] in quotes:
            at += 1
            assert at < len(literal) - 1, "ended before its end"
            assert literal[at] in quotes, "ended before its end"
        content += literal[at]
        at += 1
    return content


def literals(root: tree_sitter.Node) -> list[str]:
    """The content of every single-quoted string of the script, in order."""
    return [decoded(text_of(node)) for node in nodes(root) if node.type == "verbatim_string_characters"]


def assigned(root: tree_sitter.Node) -> dict[str, str]:
    """Every `$env:NAME = 'literal'`: the value must be one literal and nothing else."""
    found = {}
    for node in nodes(root):
        if node.type == "assignment_expression":
            target, _, value = (text_of(child) for child in node.children)
            if target.lower().startswith("$env:"):
                found[target[5:]] = decoded(value)
    return found


def carried(texts: list[str]) -> list[str]:
    kept = []
    for text in texts:
        try:
            ps1.word(text)
        except CannotQuote:
            assert set(text) & set("\0\r\n") or re.search("[\ud800-\udfff]", text)
        else:
            kept.append(text)
    return kept


@given(values=st.lists(TEXT, min_size=120, max_size=120))
@examples(40)
def test_every_value_is_one_literal_with_the_right_content(values: list[str]) -> None:
    kept = carried(values)
    argv = [Word(text) for text in kept[::2]]
    env: dict[str, str | Secret] = {f"V{number}": text for number, text in enumerate(kept[1::2]) if text}
    secret = {"S": Secret(kept[0], "T")} if kept[0] else {}
    files = make_script(spec(environment=env | secret, command=("python", *argv), guards=GUARDS), "ps1").files
    root = parsed(files["launch.ps1"])
    assert {name: value for name, value in assigned(root).items() if name not in ("RANK", "LOCAL_RANK")} == env
    listed = next(
        node
        for node in nodes(root)
        if node.type == "assignment_expression" and text_of(node).startswith("$runbookWords = @(\r\n")
    )
    assert literals(listed) == ["python", *argv]
    if secret:
        assert assigned(parsed(files["launch.env.ps1"])) == {"S": kept[0]}


def test_eight_thousand_characters_and_what_windows_cannot_hold() -> None:
    long = "0123456789 'ab\u2019c\\" * 500
    root = parsed(make_script(spec(environment={"LONG": long}, command=("python", long)), "ps1").files["launch.ps1"])
    assert assigned(root)["LONG"] == long
    assert long in literals(root)
    for options in (
        {"environment": {"LONG": "x" * 32_767}},
        {"command": ("python", "x" * 32_767)},
        {"command": ("python", *["x" * 1000] * 33)},
        {"environment": {"LONG": "🚀" * 16_384}},
    ):
        with pytest.raises(CannotQuote, match="32766"):
            make_script(spec(**options), "ps1")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activate": "conda activate train", "guards": GUARDS},
        {"activate": ". C:\\venv\\Scripts\\Activate.ps1", "guards": GUARDS},
        {
            "workdir": "~/it's here",
            "processes": ranks(4),
            "unset": ("RANK",),
            "unset_prefixes": ("PET_", "TORCHELASTIC_"),
        },
        {"command": None, "processes": ranks(2), "guards": Guards("C:/py/python.exe", "10.0.0.1", None, False)},
        {"environment": {"TOKEN": Secret("x", "T")}, "workdir": "D:\\data", "command": ("./x", "~/y", "./a b\\")},
        {"node": "node\n漢", "made_from": ("it's #> 'here'\r\n$(exit)",)},
    ],
)
def test_every_kind_of_script_parses(options: dict[str, object]) -> None:
    for data in make_script(spec(**options), "ps1").files.values():
        parsed(data)


def test_places_are_joined_to_the_folder_that_they_lie_in() -> None:
    command = ("./bin/train", "./it's data", "~/in home", "./", "~", "a/./b")
    root = parsed(make_script(spec(command=command, workdir="work"), "ps1").files["launch.ps1"])
    source = text_of(root)
    for made in ("($runbookHere + '\\bin\\train')", "($runbookHere + '\\it''s data')", "($HOME + '\\in home')"):
        assert f"\r\n    {made}\r\n" in source
    assert "\r\n    ($runbookHere + '\\')\r\n    '~'\r\n    'a/./b'\r\n" in source
    assert "$runbookFolder = ($runbookHere + '\\work')" in source


def joined(words: list[str]) -> str:
    """Join-RunbookWords, with the very patterns that the script has."""
    source = text_of(parsed(make_script(spec(), "ps1").files["launch.ps1"]))
    body = source[source.index("function Join-RunbookWords") : source.index("# Where a program is:")]
    plain, *replacements = (decoded(f"'{one}'") for one in re.findall(r"-(?:match|replace) '([^']*)'", body))
    results = [decoded(one) for one in re.findall(r"-replace '[^']*', ('[^']*')", body)]
    assert (len(replacements), len(results)) == (2, 2)

    def dotnet(pattern: str) -> str:
        return pattern.replace(r"\z", r"\Z")  # Python's \Z is .NET's \z

    def quoted(word: str) -> str:
        if re.search(dotnet(plain), word):
            return word
        for pattern, result in zip(replacements, results, strict=True):
            template = re.sub(r"\$(\d)", r"\\g<\1>", result.replace("\\", "\\\\"))
            word = re.sub(dotnet(pattern), template, word)
        return f'"{word}"'

    return " ".join(quoted(word) for word in words)


def taken_apart(line: str) -> list[str]:
    """What a Windows program makes of its command line: the rules that Microsoft documents for argv."""
    words, at = [], 0
    while at < len(line):
        while at < len(line) and line[at] in " \t":
            at += 1
        if at == len(line):
            break
        word, inside = "", False
        while at < len(line) and (inside or line[at] not in " \t"):
            backslashes = len(line[at:]) - len(line[at:].lstrip("\\"))
            at += backslashes
            if line[at : at + 1] == '"':
                word += "\\" * (backslashes // 2)
                if backslashes % 2:
                    word += '"'
                else:
                    inside = not inside
                at += 1
            elif backslashes:
                word += "\\" * backslashes
            else:
                word += line[at]
                at += 1
        assert not inside
        words.append(word)
    return words


@given(st.lists(TEXT, min_size=60, max_size=60))
@examples(40)
def test_a_program_takes_the_command_line_apart_into_the_same_words(texts: list[str]) -> None:
    words = [text for text in texts if "\0" not in text]
    assert taken_apart(joined(words)) == words


def test_and_so_does_a_real_windows_program(wine: Wine, tmp_path: Path) -> None:
    """Without any shell: Wine hands the line to the C runtime as CreateProcess would."""
    words = [
        "",
        "a b",
        'say "hi"',
        "x\\",
        "x y\\\\",
        '\\"',
        '\\\\" \\',
        "%PATH%",
        "^&|<>",
        "it's",
        "\u2019漢 🚀",
        "--%",
        "'",
    ]
    words += ['"', '""', "\t", "a=b;c,d", "\\\\host\\share\\", "x" * 8000]
    wine.program(tmp_path / "dump.exe")
    launcher = tmp_path / "caller.c"
    line = joined(words).encode("utf-16-le")
    units = ",".join(str(int.from_bytes(line[at : at + 2], "little")) for at in range(0, len(line), 2))
    launcher.write_text(
        "#include <windows.h>\n#include <wchar.h>\n"
        f"static const wchar_t words[] = {{{units},0}};\n"
        "int wmain(void) { static wchar_t line[40000]; STARTUPINFOW s = {sizeof s}; PROCESS_INFORMATION p;\n"
        '  wcscpy(line, L"dump.exe "); wcscat(line, words);\n'
        '  if (!CreateProcessW(L"dump.exe", line, 0, 0, 1, 0, 0, 0, &s, &p)) return 1;\n'
        "  WaitForSingleObject(p.hProcess, INFINITE); return 0; }\n"
    )
    subprocess.run(["x86_64-w64-mingw32-gcc", "-municode", "-o", tmp_path / "caller.exe", launcher], check=True)
    script = tmp_path / "go.bat"
    script.write_text("@caller.exe\r\n", newline="")
    assert wine.run(script, env={"RANK": "0"}).code == 0
    assert got(tmp_path).argv == words


def test_powershell_looks_itself_at_what_can_be_wrong_here() -> None:
    for guards, looks in (
        (GUARDS, ("GetHostAddresses('gpu-1')", "IsLoopback", "Any), 29500")),
        (Guards("python", "gpu-1", None, False), ("GetHostAddresses('gpu-1')",)),
        (Guards("python", "10.0.0.1", 29500, True), ("Any), 29500",)),
        (Guards("python", "10.0.0.1", None, True), ()),
    ):
        source = text_of(parsed(make_script(spec(guards=guards), "ps1").files["launch.ps1"]))
        found = re.findall(r"GetHostAddresses\([^)]*\)|IsLoopback|Any\), \d+", source)
        assert tuple(found) == looks
        assert RENDEZVOUS_PROBE not in source


def test_what_powershell_cannot_carry_is_refused() -> None:
    for options in (
        {"environment": {"A": ""}},
        {"environment": {"CUDA_VISIBLE_DEVICES": ""}},
        {"environment": {"A": "x", "a": "y"}},
        {"environment": {"Rank": "x"}},
        {"environment": {"A B": "x"}},
        {"command": ("python", "a\nb")},
        {"activate": "a\r\nb"},
    ):
        with pytest.raises(CannotQuote):
            make_script(spec(**options), "ps1")
