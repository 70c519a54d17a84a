"""No secret is shown or kept: whatever it is, however it is written, wherever it is cut, in everything that comes out."""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import random
import shlex
import string
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from profiles import examples, one_in

from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.logs import MAX_LOG_LINE_BYTES, RankLogs
from runbook.launch.quote import bat, ps1, sh
from runbook.model.decoded_text import decoded_views
from runbook.model.redact import Redactor, is_searchable_secret
from runbook.model.secrets import Secret

SECRETS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cf", "Zl", "Zp", "Zs")), min_size=6, max_size=40
).filter(lambda text: len(set(text) - set("\"'\\`*")) >= 5)


def base64_at(offset: int, coder: Callable[[bytes], bytes] = base64.b64encode) -> Callable[[str], str]:
    return lambda text: coder(b"user:"[: 3 + offset] + text.encode() + b"\n").decode()


FORMS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "json": json.dumps,
    "json, not only ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "json, slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "json in json": lambda text: json.dumps(json.dumps({"a": text})),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode()),
    "url": lambda text: quote(text, safe=""),
    "url, small letters": lambda text: quote(text, safe="").lower() if text == text.lower() else quote(text),
    "url, form": quote_plus,
    "url in url": lambda text: quote(quote(text, safe=""), safe=""),
    "html": html.escape,
    "sh": shlex.quote,
    "sh in sh": lambda text: shlex.join(["sh", "-c", shlex.join(["echo", text])]),
    "sh, backslashes": lambda text: "".join(char if char.isalnum() else f"\\{char}" for char in text),
    "sh, in pieces": lambda text: f"{text[:3]}''{text[3:]}",
    ".sh": lambda text: str(sh.setting("TOKEN", text)),
    ".ps1": lambda text: str(ps1.setting("TOKEN", text)),
    "base64": base64_at(0),
    "base64, behind one byte": base64_at(1),
    "base64, behind two": base64_at(2),
    "base64 for URLs": base64_at(1, base64.urlsafe_b64encode),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "hex, colons": lambda text: text.encode().hex(":"),
    "coloured": lambda text: f"{text[:3]}\x1b[1m{text[3:]}\x1b[0m",
}  # fmt: skip


def left(text: str, secret: str) -> bool:
    """Whether the secret can be read from a text, by anything that these forms are read with."""
    encoded = [secret, secret.encode().hex()]
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + secret.encode()).decode().rstrip("=")
        encoded.append(coded[offset + 1 : -1] if offset else coded[:-1])
    return any(one.lower() in view.text.lower() for view in decoded_views(text) for one in encoded)


@pytest.mark.parametrize("form", FORMS)
@examples(80)
@given(secret=SECRETS)
@example(secret="s3cr3t/0815+x")
@example(secret='it\'s "q" & <x>; $HOME %PATH%!')
@example(secret="ends<with&\\")
@example(secret="pâsswörd\N{KEY}\N{SNOWMAN}")
def test_a_secret_is_starred_however_it_is_written(form: str, secret: str) -> None:
    written = FORMS[form](secret)
    redacted = Redactor([Secret(secret, "x")]).text(f"1: {written} :2")
    assert redacted.startswith("1: ")
    assert redacted.endswith(" :2")
    assert "***" in redacted
    assert not left(redacted, secret), redacted


@examples(80)
@given(secret=st.text(st.sampled_from("abcXYZ019%&^!()<>|'$+/="), min_size=6, max_size=40))
def test_a_secret_in_a_batch_file(secret: str) -> None:
    assume(is_searchable_secret(secret.strip("%")))
    written = str(bat.setting("TOKEN", secret))
    assert Redactor([Secret(secret, "x")]).text(written) == 'set "TOKEN=***"'


@examples(60)
@given(
    secret=SECRETS,
    form=st.sampled_from(sorted(FORMS)),
    before=st.integers(0, 3 * 4096),
    cuts=st.lists(st.integers(0, 30_000), max_size=6),
    seed=st.integers(0, 1 << 32),
    end=st.sampled_from(["", "\n"]),
)
def test_a_stream_may_be_cut_anywhere(
    secret: str, form: str, before: int, cuts: list[int], seed: int, end: str
) -> None:
    """One line of any length, in pieces: nothing of the secret gets out, and nothing else is lost."""
    redactor = Redactor([Secret(secret, "x")])
    chosen = random.Random(seed)
    filler = "".join(chosen.choice("abc,.: #\u00e4") for _ in range(before))
    written = FORMS[form](secret)
    text = f"{filler} {written} {filler[:20_000]}{end}"
    inside = len(filler) + 1
    places = sorted({0, *(cut % len(text) for cut in cuts), inside + chosen.randrange(len(written)), len(text)})
    stream = redactor.stream()
    told = "".join(stream.take(text[first:last]) for first, last in itertools.pairwise(places)) + stream.end()
    assert not left(told, secret)
    assert told == redactor.text(text)


@examples(100)
@given(
    secret=st.text(st.characters(codec="ascii", exclude_categories=("Cc", "Zs")), min_size=12, max_size=200),
    before=st.integers(0, 120),
    width=st.sampled_from([64, 76]),
    by_line=st.booleans(),
)
def test_base64_that_is_broken_into_lines(secret: str, before: int, width: int, by_line: bool) -> None:
    """As `env | base64` writes it: what is left of a secret is at most three characters of its code in a row, twice."""
    assume(len(set(secret)) > 6)
    coded = base64.b64encode(b"x" * before + secret.encode() + b"y" * 90).decode()
    text = "".join(coded[at : at + width] + "\n" for at in range(0, len(coded), width))
    redactor = Redactor([Secret(secret, "x")])
    lines = text.splitlines(keepends=True) if by_line else [text]
    redacted = "".join(map(redactor.text, lines)).replace("\n", "")
    own = coded[-(-8 * before // 6) : 8 * (before + len(secret)) // 6]
    assert not any(own[at : at + 8] in redacted for at in range(len(own) - 7))


def test_a_long_secret_takes_memory_in_proportion() -> None:
    """A kubeconfig or a key in a variable has some ten thousand characters; each takes some hundred bytes, in all forms."""
    secret = Secret("".join(random.Random(1).choices(string.ascii_letters, k=20_000)), "x")
    tracemalloc.start()
    try:
        redactor = Redactor([secret])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500 * len(secret.reveal())
    assert len(redactor.text(base64.encodebytes(secret.reveal().encode()).decode()).replace("*", "").strip("\n=")) <= 3


def test_whole_lines_are_not_held_back() -> None:
    stream = Redactor([Secret("hunter22", "x")]).stream()
    assert stream.take("a hunter22\nb hun") == "a ***\n"
    assert stream.take("ter22\nc") == "b ***\n"
    assert stream.end() == "c"


@examples(60)
@given(
    secret=SECRETS,
    form=st.sampled_from(sorted(FORMS)),
    at=st.integers(-200, 200),
    size=st.sampled_from([1 << 14, 1 << 16, (1 << 16) + 7, 1 << 20]),
    end=st.sampled_from([b"", b"\n"]),
)
def test_a_secret_across_the_limit_of_a_line(
    tmp_path_factory: pytest.TempPathFactory, secret: str, form: str, at: int, size: int, end: bytes
) -> None:
    """A progress bar without any line break, the secret where the line is passed on in pieces, read in pieces as well."""
    folder = tmp_path_factory.mktemp("logs")
    told: list[str] = []
    logs = RankLogs(
        folder, "attempt-01", Redactor([Secret(secret, "x")]), lambda place, stream, lines: told.extend(lines)
    )
    place = ProcessSpec("rank-00000.a.l0", "a", 0, (0,))
    data = b"#" * (MAX_LOG_LINE_BYTES + at) + FORMS[form](secret).encode() + b"\r=" * MAX_LOG_LINE_BYTES + end
    for begin in range(0, len(data), size):
        logs.take(place, "rank-00000.a.l0.out", data[begin : begin + size], begin)
    assert sum(map(len, told)) > MAX_LOG_LINE_BYTES, "a line that never ends is passed on all the same"
    logs.close()
    kept = (logs.folder / "rank-00000.a.l0.out").read_bytes().decode()
    assert "***" in kept
    assert not left(kept, secret)
    assert not any(left(line, secret) for line in told)


@examples(60)
@given(secret=SECRETS, forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=4))
def test_in_whatever_holds_texts(secret: str, forms: list[str]) -> None:
    written = [FORMS[form](secret) for form in forms]
    value = {"a": written, secret: tuple(written), "n": 1, "b": {"c": " ".join(written)}, "none": None}
    redacted = Redactor([Secret(secret, "x")]).anything(value)
    json.loads(json.dumps(redacted))
    assert redacted["n"] == 1
    assert len(redacted["a"]) == len(forms)  # type: ignore[arg-type]
    assert not left(json.dumps(redacted), secret)


@pytest.mark.parametrize("short", ["", "1", "on", "yes", "    ", " a \t"])
def test_what_is_too_short_is_not_starred_everywhere(short: str) -> None:
    """It would turn every other word into stars. Whoever uses one is warned."""
    assert not is_searchable_secret(short)
    text = "step 1 on    yes a  b"
    assert Redactor([Secret(short, "x")]).text(text) == text


def test_tokens_of_known_formats_are_starred_without_being_told() -> None:
    token = "hf_" + "aB3" * 12
    assert Redactor(()).text(f"login with {token}, and {quote(token)}") == "login with ***, and ***"
    for cut in range(len(token)):
        stream = Redactor(()).stream()
        text = "#" * 9000 + token
        at = 9000 + cut
        assert token not in stream.take(text[:at]) + stream.take(text[at:] + "\n") + stream.end()


@pytest.mark.cost
@pytest.mark.parametrize("secrets", [1, 30, 2000])
@pytest.mark.parametrize("kind", ["log", "one letter", "escapes", "half secrets"])
def test_the_cost_is_linear_however_many_there_are(secrets: int, kind: str) -> None:
    redactor = Redactor([Secret(f"secret-{number}-{number * 7919:x}" + "a" * 8, "x") for number in range(secrets)])
    line = {
        "log": "[rank0] step 100 loss 2.345, 12 % done in 3.4 s\n",
        "one letter": "a" * 64,
        "escapes": '{"a": "\\\\u0041\\n%41&amp;"}',
        "half secrets": "secret-1-",
    }[kind]

    def cost(size: int) -> float:
        text = line * (size // len(line))
        best = 1e9
        for _ in range(3):
            begin = time.process_time()
            redactor.text(text)
            best = min(best, time.process_time() - begin)
        return best

    small, large = cost(100_000), cost(400_000)
    assert large < 8 * max(small, 0.005)


# Through the program.

ENVIRONMENT_SECRET = "s3cr3t/0815+'x\"&é"
PLAYBOOK_SECRET = "anoth3r\\one$HOME"
PASSWORD = "correct-horse-battery"
TOKEN = "ghp_" + "aB3" * 12
PLANTED = (ENVIRONMENT_SECRET, PLAYBOOK_SECRET, PASSWORD, TOKEN)
INVENTORY = """\
network: {interface: lo}
defaults:
  connection: local
  workdir: WORKDIR
  env: {TOKEN: {env: SECRET_OF_MINE}, DB_PASSWORD: PASSWORD}
nodes:
  here: {address: 127.0.0.1}
""".replace("PASSWORD}", f"{PASSWORD}}}")
PROGRAM = """\
import base64, json, os, shlex, sys, urllib.parse
for secret in (os.environ["TOKEN"], os.environ["OTHER"], os.environ["DB_PASSWORD"], "TOKEN_OF_A_FORMAT"):
    for stream in (sys.stdout, sys.stderr):
        for form in (secret, json.dumps(secret), repr(secret), urllib.parse.quote(secret, safe=""), shlex.quote(secret),
                     base64.b64encode(b"u:" + secret.encode()).decode(), secret.encode().hex()):
            print("said", form, file=stream)
        print("#" * (65536 + 4090) + secret + "#" * 70000, file=stream)
        print("no end", secret, end="", file=stream, flush=True)
        print(file=stream)
sys.exit(3)
""".replace("TOKEN_OF_A_FORMAT", TOKEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY.replace("WORKDIR", str(tmp_path / "work")))
    (tmp_path / "program.py").write_text(PROGRAM)
    job = f"{{command: [{sys.executable}, {tmp_path / 'program.py'}, --api-key, x], env: {{OTHER: {{env: OTHER_OF_MINE}}}}}}"
    (tmp_path / "playbook.yml").write_text(f"stages:\n  - {{name: train, launch: {job}}}\n")
    return tmp_path


def runbook(folder: Path, *arguments: str, known: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(folder), "PYTHONUTF8": "1"}
    if known:
        environment |= {"SECRET_OF_MINE": ENVIRONMENT_SECRET, "OTHER_OF_MINE": PLAYBOOK_SECRET}
    return subprocess.run(
        [sys.executable, "-m", "runbook", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_clean(name: str, text: str, *secrets: str) -> None:
    for secret in secrets or PLANTED:
        if secret == TOKEN:  # of which only the format is known
            assert not any(TOKEN in view.text for view in decoded_views(text)), f"{secret} in {name}"
        else:
            assert not left(text, secret), f"{secret} in {name}"


def files_of(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
@pytest.mark.parametrize("output", one_in(2, ["text", "json"]))
def test_a_job_that_prints_its_secrets(folder: Path, output: str) -> None:
    """Run, looked at again from a shell that has the secrets and from one that has not, and collected."""
    done = runbook(
        folder, "run", "playbook.yml", "-i", "inventory.yml", "--run-dir", "out", "--keep", "-v", "-o", output
    )
    assert done.returncode == 1, done.stderr
    assert "***" in done.stdout + done.stderr
    assert_clean("run", done.stdout)
    assert_clean("run, stderr", done.stderr)
    kept = files_of(folder / "out")
    assert any("said ***" in text for text in kept.values())
    for name, text in kept.items():
        assert_clean(name, text)
    for known in (True, False):
        for command in (["logs"], ["logs", "-f"], ["ps", "-v"], ["ps", "-o", "json"]):
            told = runbook(folder, *command, "-i", "inventory.yml", known=known)
            assert told.stdout, told.stderr
            assert_clean(" ".join(command), told.stdout)
            assert_clean(" ".join(command), told.stderr)
            if command[0] == "logs":
                assert "said ***" in told.stdout
                assert "is not set here" not in told.stderr, "the node's own file tells it"
                assert not files_of(folder / ".runbook"), "no copy is kept"
    (environment,) = (folder / "work").rglob("launch.env")
    environment.unlink()
    told = runbook(folder, "logs", "-i", "inventory.yml", known=False)
    assert "warning: the environment variable SECRET_OF_MINE is not set here" in told.stderr
    assert_clean("logs", told.stdout, PASSWORD, TOKEN)
    done = runbook(folder, "collect", "--run-dir", "out", "-i", "inventory.yml", "--out", "a.tar.gz")
    assert done.returncode == 0, done
    assert_clean("collect", done.stdout + done.stderr)
    with tarfile.open(folder / "a.tar.gz") as tar:
        for member in tar:
            assert_clean(member.name, tar.extractfile(member).read().decode())  # type: ignore[union-attr]


def test_what_is_looked_at_before_a_run(folder: Path) -> None:
    playbook = (folder / "playbook.yml").read_text().replace("--api-key, x", f"--name, '{ENVIRONMENT_SECRET}', '{PASSWORD}'".replace("'x", "''x"))  # fmt: skip
    (folder / "playbook.yml").write_text(playbook)
    for command in (
        ["run", "playbook.yml", "-i", "inventory.yml", "-C"],
        ["run", "playbook.yml", "-i", "inventory.yml", "-C", "-o", "json"],
        ["render", "playbook.yml", "-i", "inventory.yml", "--out", "r", "--diff"],
        ["render", "playbook.yml", "-i", "inventory.yml", "--out", "r", "--diff", "--shell", "ps1"],
        ["inventory", "list", "-i", "inventory.yml"],
        ["inventory", "list", "-i", "inventory.yml", "-o", "json"],
        ["inventory", "explain", "-i", "inventory.yml", "here"],
        ["inventory", "explain", "-i", "inventory.yml", "here", "DB_PASSWORD"],
    ):
        done = runbook(folder, *command)
        assert done.returncode == 0, done
        assert done.stdout
        assert_clean(" ".join(command), done.stdout + done.stderr)
        if "DB_PASSWORD" in command:
            assert "***" in done.stdout


@pytest.mark.parametrize(
    "line",
    one_in(
        7,
        [
            f"env: {{DB_PASSWORD: {PASSWORD}, WRONG KEY: 1}}",
            f"env: {{DB_PASSWORD: {PASSWORD}, A: [1]}}",
            f"vars: {{token: {TOKEN}}}, x",
            f"env: {{A: {TOKEN}, 1: [2]}}",
            f"nonsense: 'https://me:{PASSWORD}@host/x'",
            f"env: {{DB_PASSWORD: {PASSWORD}, DB_PASSWORD: {PASSWORD}}}",
            f"env: {{DB_PASSWORD: {PASSWORD}",
        ],
    ),
)
def test_errors_with_source_lines_show_no_secret(folder: Path, line: str) -> None:
    (folder / "wrong.yml").write_text(f"{line}\nnodes: {{here: {{address: 127.0.0.1}}}}\n")
    for command in (
        ["inventory", "list"],
        ["run", "playbook.yml"],
        ["inventory", "explain", "here"],
        ["ps"],
        ["collect"],
    ):
        words = [*command, "-i", "wrong.yml"] if command[-1] != "here" else [*command[:-1], "-i", "wrong.yml", "here"]
        done = runbook(folder, *words)
        assert done.returncode == 2, done
        assert "wrong.yml:" in done.stderr
        assert_clean(" ".join(words), done.stdout + done.stderr, PASSWORD, TOKEN)


def test_a_crash_report_shows_no_secret(folder: Path) -> None:
    """A bug of ours, planted where the inventory's values are at hand."""
    (folder / "crash.py").write_text(
        "import sys, runbook.engine.plan\n"
        "def broken(self):\n"
        "    values = [value.reveal() if hasattr(value, 'reveal') else value for node in self.inventory.nodes for value in node.env.values()]\n"
        "    raise KeyError(values)\n"
        "runbook.engine.plan.Plan.sources = property(broken)\n"
        "from runbook.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "crash.py", "render", "playbook.yml", "-i", "inventory.yml", "--out", "r", "-e", f"api_token={TOKEN}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SECRET_OF_MINE": ENVIRONMENT_SECRET, "OTHER_OF_MINE": PLAYBOOK_SECRET},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 70, done
    assert "KeyError" in done.stderr
    assert "***" in done.stderr
    assert_clean("crash", done.stdout + done.stderr, ENVIRONMENT_SECRET, PASSWORD, TOKEN)


def test_who_uses_a_short_secret_is_warned(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runbook", "run", "playbook.yml", "-i", "inventory.yml", "-C"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SECRET_OF_MINE": "abc", "OTHER_OF_MINE": PLAYBOOK_SECRET},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert "the environment variable SECRET_OF_MINE is too short to be masked safely" in done.stderr


@pytest.mark.thorough
def test_attached_from_a_shell_that_has_no_secret(folder: Path) -> None:
    """A detached job that fails while somebody looks on: its lines, the verdict, the evidence and what is kept of them."""
    program = PROGRAM.replace(
        "sys.exit(3)", "import time; time.sleep(25); raise SystemExit('failed with ' + os.environ['TOKEN'])"
    )
    (folder / "program.py").write_text(program)
    playbook = (folder / "playbook.yml").read_text()
    (folder / "playbook.yml").write_text(playbook.replace("launch: {command", "launch: {detach: true, command"))
    done = runbook(folder, "run", "playbook.yml", "-i", "inventory.yml", "--run-dir", "out")
    assert done.returncode == 0, done
    told = runbook(folder, "attach", "-i", "inventory.yml", known=False)
    assert told.returncode == 1, told
    assert "said ***" in told.stdout
    assert "failed with ***" in told.stdout + told.stderr
    assert_clean("attach", told.stdout + told.stderr)
    stored = files_of(folder / ".runbook")
    assert stored
    for name, text in stored.items():
        assert_clean(name, text)
