"""Batch files, judged by a cmd that runs them and by Windows programs that say what they got."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from profiles import examples, one_in

from runbook.launch.preconditions import RENDEZVOUS_PROBE, Guards
from runbook.launch.quote import CannotQuote, Word, bat
from runbook.model.secrets import Secret

from .specs import FRAGMENTS, TEXT, ranks, written
from .wine import Wine, got, windows

PLAIN = [one for one in FRAGMENTS if re.fullmatch(r"[\t !#-~]+", one)]
ASCII_TEXT = st.lists(
    st.one_of(st.sampled_from(PLAIN), st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=6)),
    min_size=1,
    max_size=5,
).map("".join)
"""Mostly what a .bat carries, so that most of it is really run."""


@pytest.fixture
def folder(tmp_path: Path, wine: Wine) -> Path:
    """A folder with a name that needs quotes, and the program that dumps what it gets in it."""
    folder = tmp_path / "it's (a) & ^ folder!"
    folder.mkdir()
    wine.program(folder / "dump.exe")
    return folder


def carried(texts: list[str]) -> list[str]:
    """Those that a .bat carries. The others are refused for a reason that we can see."""
    kept = []
    for text in texts:
        try:
            bat.word(text)
        except CannotQuote:
            assert any(one == '"' or not one.isascii() or (not one.isprintable() and one != "\t") for one in text)
        else:
            kept.append(text)
    return kept


@given(values=st.lists(st.one_of(ASCII_TEXT, ASCII_TEXT, TEXT), min_size=120, max_size=120), words=st.data())
@examples(30, suppress_health_check=list(HealthCheck))
def test_environment_and_arguments_arrive(wine: Wine, values: list[str], words: st.DataObject) -> None:
    kept = carried(values)
    argv = [Word(text) for text in kept[::2]]  # a variable cannot be empty
    env: dict[str, str | Secret] = {f"V{number}": text for number, text in enumerate(kept[1::2]) if text}
    secrets = {f"S{number}": Secret(text, "T") for number, text in enumerate(kept[1:9:2]) if text}
    with tempfile.TemporaryDirectory(prefix="a b&c") as name:
        folder = Path(name)
        wine.program(folder / "dump.exe")
        path = written(folder, "bat", environment=env | secrets, command=("./dump.exe", *argv))
        done = wine.run(path)
        assert (done.code, done.stdout, done.stderr) == (0, "", "")
        found = got(folder)
    assert found.argv == argv
    assert {name: found.env.get(name) for name in env} == env
    assert {name: found.env.get(name) for name in secrets} == {name: value.reveal() for name, value in secrets.items()}


def test_what_set_shows(wine: Wine, folder: Path) -> None:
    """cmd's own view of the same variables, through another batch file that the script's activate line calls."""
    texts = ["a & b", "100%", "%PATH%", "!PATH!", "^", " padded ", "x=y", "(", "<>|", "\\", "'", "`", "-", "\ta"]
    env = {f"SHOWN{number}": text for number, text in enumerate(texts)}
    path = written(folder, "bat", environment=env, activate="set SHOWN", command=("./dump.exe",))
    lines = wine.run(path).stdout.replace("\r\n", "\n").split("\n")
    assert {line for line in lines if line.startswith("SHOWN")} == {f"{k}={v}" for k, v in env.items()}


def test_eight_thousand_characters_and_the_longest_line(wine: Wine, folder: Path) -> None:
    room = bat.MAX_CMD_LINE_CHARACTERS - len('set "LONG="')
    for length in (8000, room):
        value = ("0123456789abcdef &^!" * 500)[:length]
        path = written(folder, "bat", environment={"LONG": value}, command=("./dump.exe",))
        assert (wine.run(path).code, got(folder).env["LONG"] == value) == (0, True)
    word = ("0123456789abcdef &^!" * 500)[:7500]
    assert wine.run(written(folder, "bat", command=("./dump.exe", word))).code == 0
    assert got(folder).argv == [word]
    for options in (
        {"environment": {"LONG": "x" * (room + 1)}},
        {"environment": {"LONG": "%" * (room // 2 + 1)}},
        {"environment": {"LONG": Secret("x" * (room + 1), "T")}},
        {"command": ("./dump.exe", "x" * 8000)},
        {"command": ("./dump.exe", *["word"] * 1300)},
        {"activate": f"call x.bat {'y' * 8200}"},
    ):
        with pytest.raises(CannotQuote, match="8191"):
            written(folder, "bat", **options)


def test_places_in_the_command(wine: Wine, folder: Path) -> None:
    words = ("./data file/x", "~/in home/x", "./", "~", "a/./b", ".\\x", "./ends\\")
    wine.run(written(folder, "bat", command=("./dump.exe", *words)))
    here, home = windows(folder), f"C:\\users\\{wine.home.name}"
    assert got(folder).argv == [
        *(f"{here}\\data file\\x", f"{home}\\in home\\x", f"{here}\\."),
        *("~", "a/./b", ".\\x", f"{here}\\ends\\"),
    ]
    assert got(folder).folder == here


@pytest.mark.parametrize("code", one_in(3, [0, 1, 3, 42, 255, 2147483647, 3221225477]))
def test_the_exit_code_is_passed_on(wine: Wine, folder: Path, code: int) -> None:
    """cmd ends with 32 bits of it, of which Linux shows eight."""
    path = written(folder, "bat", command=("./dump.exe",))
    inherited = {"ERRORLEVEL": "5"}  # a variable of this name hides the real one
    assert wine.run(path, env={"dump_EXIT": str(code), **inherited}).code == code % 256
    assert wine.run(path, "0", env={"dump_EXIT": str(code), **inherited}).code == code % 256


def test_every_rank_runs_and_the_first_that_failed_is_the_exit_code(wine: Wine, folder: Path) -> None:
    path = written(
        folder, "bat", processes=ranks(4, first=3), environment={"A": "100% &"}, command=("./dump.exe", "a b")
    )
    for codes, expected in (({}, {0}), ({5: 7, 6: 9}, {7, 9}), ({6: 255}, {255}), ({4: 3}, {3})):
        for file in folder.glob("dump[0-9]"):
            file.unlink()
        done = wine.run(path, env={f"dump_EXIT_{rank}": str(code) for rank, code in codes.items()})
        assert done.code in expected
        assert ("waits for the others" in done.stderr) <= any(codes.values())
        for local_rank in range(4):
            found = got(folder, rank=3 + local_rank)
            assert (found.argv, found.env["A"], found.folder) == (["a b"], "100% &", windows(folder))
            assert found.env["LOCAL_RANK"] == str(local_rank)
    assert not list((wine.home / "AppData/Local/Temp").glob("runbook-*"))


def test_one_rank_of_several(wine: Wine, folder: Path) -> None:
    path = written(folder, "bat", processes=ranks(3, first=4), command=("./dump.exe",))
    assert wine.run(path, "1", env={"dump_EXIT": "6"}).code == 6
    assert [file.name for file in folder.glob("dump?")] == ["dump5"]
    assert got(folder, rank=5).env["LOCAL_RANK"] == "1"
    done = wine.run(path, "3")
    assert (done.code, done.stderr) == (2, 'launch.bat: this node has no local rank "3"\r\n')


def test_without_a_command_the_arguments_are_it(wine: Wine, folder: Path) -> None:
    path = written(folder, "bat", processes=ranks(2), command=None)
    done = wine.run(path, "dump.exe", "a b", "x&y z", "-u", env={"dump_EXIT_1": "42"})
    assert (done.code, done.stderr) == (42, "")
    assert [got(folder, rank=rank).argv for rank in (0, 1)] == [["a b", "x&y z", "-u"]] * 2
    assert wine.run(path).code == 2
    (folder / "other.bat").write_text("@dump.exe %1\r\n@exit /b 9\r\n", newline="")
    assert wine.run(path, "other.bat", "once").code == 9  # a batch file that is not called does not come back
    assert [got(folder, rank=rank).argv for rank in (0, 1)] == [["once"]] * 2


def test_a_network_folder_is_refused(wine: Wine, folder: Path) -> None:
    for workdir in ("\\\\nas\\jobs", "//nas/jobs"):
        with pytest.raises(CannotQuote, match="net use"):
            written(folder, "bat", workdir=workdir)
    share = f"\\\\.\\unix{folder}".replace("/", "\\")  # the nearest thing to one that there is here
    caller = folder / "caller.bat"
    caller.write_text(f'@call "{share}\\launch.bat"\r\n', newline="")
    for processes in (ranks(1), ranks(2)):
        written(folder, "bat", command=("./dump.exe",), processes=processes)
        assert "cmd cannot work in the network folder" in wine.run(caller).stderr
    assert not (folder / "dump0").exists()


def test_what_another_launcher_left_is_gone(wine: Wine, folder: Path) -> None:
    path = written(
        folder,
        "bat",
        command=("./dump.exe",),
        environment={"PET_OWN": "kept"},
        unset=("LOCAL_WORLD_SIZE", "NEVER_THERE"),
        unset_prefixes=("TORCHELASTIC_", "PET_", "NOBODY_HAS_"),
    )
    wine.run(path, env={"TORCHELASTIC_RUN_ID": "a=b c", "PET_NNODES": "2", "LOCAL_WORLD_SIZE": "8", "PETER": "stays"})
    env = got(folder).env
    left = {
        name: value for name, value in env.items() if name.startswith(("TORCHEL", "PET", "LOCAL_W", "NOBODY", "NEVER"))
    }
    assert left == {"PET_OWN": "kept", "PETER": "stays"}


def test_the_working_folder(wine: Wine, folder: Path) -> None:
    work = wine.home / "my work"
    work.mkdir(exist_ok=True)
    (folder / "beside").mkdir()
    home = f"C:\\users\\{wine.home.name}"
    for workdir, expected in (
        ("~/my work", f"{home}\\my work"),
        ("~", home),
        (f"{home}\\my work", f"{home}\\my work"),
        ("beside", f"{windows(folder)}\\beside"),
        ("./beside", f"{windows(folder)}\\beside"),
    ):
        assert wine.run(written(folder, "bat", command=("./dump.exe",), workdir=workdir)).code == 0
        assert got(folder).folder.rstrip("\\").lower() == expected.lower()
    for workdir in ("~/nowhere & 100%", "dump.exe", "Q:\\x"):
        done = wine.run(written(folder, "bat", command=("./dump.exe",), workdir=workdir))
        assert (done.code, done.stderr.count("\n")) == (90, 1)
        assert f"node-a has no folder {workdir}, or none that this user may enter: make it" in done.stderr


@pytest.mark.parametrize(
    "program", one_in(3, ["no-such", "no-such.exe", "./no such.exe", "C:/x y/no-such", "a&b", "100%"])
)
def test_a_program_that_is_not_there(wine: Wine, folder: Path, program: str) -> None:
    done = wine.run(written(folder, "bat", command=(program, "-u")))
    assert (done.code, done.stdout, done.stderr.count("\n")) == (92, "", 1)
    assert f"launch.bat: node-a has no program {program}: install it" in done.stderr


def test_a_program_is_found_through_path_with_or_without_its_ending(wine: Wine, folder: Path) -> None:
    (folder / "on path").mkdir()
    wine.program(folder / "on path/train.exe")
    (folder / "train.bat").write_text("exit 1\r\n")  # a real program is taken before it
    for program in ("train", "train.exe", "TRAIN", "./on path/train", f"{windows(folder)}/on path\\train"):
        done = wine.run(written(folder, "bat", command=(program, "a b")), env={"WINEPATH": windows(folder / "on path")})
        assert done.code == 0, (program, done)
        assert got(folder, "train").argv == ["a b"]
        (folder / "train0").unlink()


@pytest.mark.parametrize("program", ["a*b", "", "what?", "x|y", 'x"y'])
def test_a_program_that_cmd_would_take_apart_is_refused(folder: Path, program: str) -> None:
    with pytest.raises(CannotQuote):
        written(folder, "bat", command=(program,))


@pytest.mark.parametrize(
    "line", one_in(2, ["call no-such.bat", "no-such.bat", "fails.bat", "call fails.bat", "cd /d Q:\\nowhere"])
)
def test_an_activation_that_fails_starts_nothing(wine: Wine, folder: Path, line: str) -> None:
    (folder / "fails.bat").write_text("@echo off\r\nset HALF=done\r\nexit /b 3\r\n", newline="")
    done = wine.run(written(folder, "bat", command=("./dump.exe",), activate=line))
    assert done.code == 91
    assert f"node-a could not run the activate line `{line}`" in done.stderr
    assert done.stderr.endswith("(code 1)\r\n")  # Wine's `call` makes a 1 of every failing batch file's code
    assert not (folder / "dump0").exists()


@pytest.mark.parametrize(
    "line",
    one_in(
        4,
        [
            "act.bat",
            "call act.bat",
            "@call act.bat",
            "act",
            ".\\act.bat",
            'set "COLOUR=deep blue"',
            "CALL act x & ver>nul",
            "@act.bat",
            "(act.bat)",
            "ver>nul && act.bat",
            "cd . & act 2>&1",
            "if exist act.bat act.bat",
            "for %%V in (act) do if not defined COLOUR %%V",
        ],
    ),
)
def test_an_activation_that_works_is_seen_by_the_rank(wine: Wine, folder: Path, line: str) -> None:
    (folder / "act.bat").write_text('@set "COLOUR=deep blue"\r\n', newline="")
    for processes in (ranks(1), ranks(2)):
        done = wine.run(written(folder, "bat", command=("./dump.exe",), activate=line, processes=processes))
        assert done.code == 0, done
        assert {got(folder, rank=rank.environment["RANK"]).env["COLOUR"] for rank in processes} == {"deep blue"}


@pytest.mark.thorough
def test_conda_is_found_where_it_is_installed(wine: Wine, folder: Path) -> None:
    """It need not be in PATH: the folders that its installers choose are looked into."""
    guarded = {"guards": Guards("./python.exe", "127.0.0.1", None, False), "activate": "conda activate my-env"}
    wine.program(folder / "python.exe")
    path = written(folder, "bat", command=("./dump.exe",), **guarded)
    done = wine.run(path)
    assert (done.code, done.stderr) == (
        93,
        "launch.bat: node-a has no conda, which `activate:` asks for: install it, or correct the line\r\n",
    )
    conda = wine.home / "miniconda3/condabin/conda.bat"
    conda.parent.mkdir(parents=True)
    try:
        conda.write_text('@set "CONDA_GOT=%*"\r\n@if not "%2"=="my-env" exit /b 1\r\n', newline="")
        assert wine.run(path).code == 0
        assert got(folder).env["CONDA_GOT"] == "activate my-env"
        other = written(folder, "bat", command=("./dump.exe",), **{**guarded, "activate": "conda activate other"})
        assert wine.run(other).code == 91
    finally:
        shutil.rmtree(conda.parent.parent)


def guarded(folder: Path, **options: object) -> Path:
    """A script that asks ./python.exe, with these guards."""
    told: dict[str, object] = {"python": "./python.exe", "address": "gpu-1", "port": 29500, "several_nodes": True}
    return written(folder, "bat", command=("./dump.exe",), processes=ranks(2), guards=Guards(**{**told, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize("python", one_in(3, ["./python.exe", "./python", "./python.bat"]))
def test_the_guards_ask_python_in_words_that_cmd_leaves_alone(wine: Wine, folder: Path, python: str) -> None:
    """What the words do is shown with a real Python, on Linux: test_probe.py. Here a stand-in says which arrived."""
    wine.program(folder / "python.exe")
    for arguments, port in (((), "29500"), (("0",), "29500"), (("1",), "0")):
        assert wine.run(guarded(folder, python=python), *arguments).code == 0
        assert got(folder, "python", "").argv == ["-I", "-c", RENDEZVOUS_PROBE, "gpu-1", port, "1"]
    wine.run(guarded(folder, port=None, several_nodes=False, address="100% & ^"))
    assert got(folder, "python", "").argv[3:] == ["100% & ^", "0", "0"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    one_in(
        3,
        [
            (94, "node-a cannot resolve MASTER_ADDR gpu-1: correct `rendezvous: {address: ...}`"),
            (95, "MASTER_ADDR gpu-1 is node-a itself by its loopback address"),
            (97, "port 29500 cannot be had on node-a: end the program that holds it (see `netstat -ano`)"),
        ],
    ),
)
def test_what_python_answers_stops_the_script(wine: Wine, folder: Path, answer: int, sentence: str) -> None:
    wine.program(folder / "python.exe")
    done = wine.run(guarded(folder), env={"python_EXIT": str(answer)})
    assert (done.code, done.stdout, done.stderr.count("\n")) == (answer, "", 1)
    assert sentence in done.stderr
    assert not (folder / "dump0").exists()


@pytest.mark.parametrize("answer", one_in(3, ["1", "9009", "3221225781"]))
@pytest.mark.parametrize("other", ["python.exe", "py.exe"])
def test_another_python_looks_where_the_inventorys_does_not_run(
    wine: Wine, folder: Path, answer: str, other: str
) -> None:
    wine.program(folder / "broken.exe")
    (folder / "on path").mkdir()
    wine.program(folder / "on path" / other)
    env = {"WINEPATH": windows(folder / "on path"), "broken_EXIT": answer, f"{other[:-4]}_EXIT": "94"}
    assert wine.run(guarded(folder, python="./broken.exe"), env=env).code == 94
    assert (folder / "broken").exists()
    assert got(folder, other[:-4], "").argv[:2] == ["-I", "-c"]


@pytest.mark.parametrize(
    ("told", "code"),
    one_in(
        3,
        [
            ({"address": "gpu-1.invalid"}, 94),
            ({"address": "localhost"}, 95),
            ({"address": "127.0.0.1"}, 95),
            ({"address": "localhost", "several_nodes": False}, 0),
            ({"address": "10.0.0.1"}, 0),
        ],
    ),
)
def test_without_any_python_windows_itself_looks(wine: Wine, folder: Path, told: dict[str, object], code: int) -> None:
    """Wine's netstat lists nobody who listens, and so no port is taken here."""
    done = wine.run(guarded(folder, python="no-such-python", **told))
    assert (done.code, done.stderr == "", (folder / "dump0").exists()) == (code, code == 0, code == 0)


def test_where_nobody_can_look_the_script_says_so_and_goes_on(wine: Wine, folder: Path) -> None:
    address = "100% ^x & y"
    done = wine.run(guarded(folder, python="no-such-python", address=address))
    says = f"launch.bat: no Python runs here, and nothing else could look whether {address} resolves\r\n"
    assert (done.code, done.stderr, (folder / "dump0").exists()) == (0, says, True)


@pytest.mark.thorough
def test_cmd_is_a_program_like_any_other(wine: Wine, folder: Path) -> None:
    env = {"SHOWN1": "a & b %PATH% !x! ^", "SHOWN2": " (x) "}
    for command in (("cmd", "/c", "set"), ("cmd.exe", "/d", "/c", "set SHOWN"), ("cmd", "/c", "set SHOWN& exit 7")):
        done = wine.run(written(folder, "bat", command=command, environment=env, guards=Guards("x", "::1", 1, False)))
        assert (done.code, done.stderr) == (7 if command[-1].endswith("7") else 0, "")
        shown = [line for line in done.stdout.split("\r\n") if line.startswith("SHOWN")]
        assert shown == [f"{key}={value}" for key, value in env.items()]


@pytest.mark.thorough
def test_a_batch_file_is_the_program_where_there_is_no_other(wine: Wine, tmp_path: Path) -> None:
    """As pyenv-win's python.bat and npm's shims are: `call`, and all words handed on."""
    here = tmp_path / "it's (a) & folder"
    (here / "on path").mkdir(parents=True)
    wine.program(here / "on path/real.exe")
    shim = '@echo off\r\ncall :go %*\r\nexit /b %errorlevel%\r\n:go\r\n"%~dp0real.exe" %*\r\nexit /b %errorlevel%\r\n'
    words = ["-m", "a b", "", "x&y|z<>(q)", "k=v;w,x", "it's `$x`", "C:\\a b\\", "@#~*?[]{}+-_:.", "/c", "./train.py"]
    for program, file in (("shim", "shim.bat"), ("shim", "shim.cmd"), ("shim.bat", "shim.bat")):
        (here / "on path" / file).write_text(shim, newline="")
        for processes in (ranks(1), ranks(2)):
            path = written(here, "bat", command=(program, *words), processes=processes)
            done = wine.run(path, env={"WINEPATH": windows(here / "on path"), "real_EXIT": "42"})
            assert done.code == 42
            for rank in range(len(processes)):
                assert got(here, "real", rank).argv == [*words[:-1], f"{windows(here)}\\train.py"]
        (here / "on path" / file).unlink()


@given(st.lists(ASCII_TEXT, min_size=20, max_size=20))
@examples(5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_not_read_again_comes_through_a_batch_file(wine: Wine, texts: list[str]) -> None:
    words = [text for text in carried(texts) if not text.startswith(("./", "~/")) and not bat.read_again((text,))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wine.program(folder / "real.exe")
        (folder / "shim.bat").write_text("@call :go %*\r\n@exit /b\r\n:go\r\n@real.exe %*\r\n", newline="")
        assert wine.run(written(folder, "bat", command=("./shim", *words))).code == 0
        assert got(folder, "real").argv == words


@pytest.mark.parametrize("word", one_in(3, ["100%", "%PATH%", "a^b", "hi!", "/?", "x/?y", "./train.py"]))
def test_a_batch_file_that_would_change_the_words_is_not_started(wine: Wine, folder: Path, word: str) -> None:
    """The last one is fine by itself: it is the folder that has a ^ and a ! in its name."""
    (folder / "shim.bat").write_text("@echo started\r\n", newline="")
    done = wine.run(written(folder, "bat", command=("./shim", word)))
    assert (done.code, done.stdout, done.stderr.count("\n")) == (92, "", 1)
    assert "node-a has only a batch file for ./shim, which would read percent signs" in done.stderr
    if word != "./train.py":
        with pytest.raises(CannotQuote, match="batch file"):
            written(folder, "bat", command=("./shim.bat", word))
    wine.program(folder / "shim.exe")  # and this one wins
    assert wine.run(written(folder, "bat", command=("./shim", word))).code == 0


def test_what_the_script_needs_beside_it(wine: Wine, folder: Path) -> None:
    path = written(folder, "bat", command=("./dump.exe",), environment={"TOKEN": Secret("x", "T")})
    (folder / "launch.env.bat").unlink()
    done = wine.run(path)
    assert (done.code, done.stderr.count("\n")) == (99, 1)
    wine.program(folder / "python.exe")
    path = written(
        folder,
        "bat",
        command=("./dump.exe",),
        activate="call venv\\activate.bat",
        guards=Guards("./python.exe", "127.0.0.1", None, False),
    )
    done = wine.run(path)
    assert (done.code, done.stderr.count("\n")) == (93, 1)
    assert "node-a has no venv\\activate.bat, which `activate:` asks for" in done.stderr
