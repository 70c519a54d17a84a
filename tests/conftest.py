"""For all tests: how thorough they are, and the lab: its fixtures, and what happens where it cannot be had."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import profiles
import pytest
from hypothesis import settings
from lab import Lab, containers_missing, lab_missing, slurm_missing
from leftovers import Leftovers, own_temporary_folder

NEEDED = {"lab": lab_missing, "slurm": slurm_missing, "containers": containers_missing}
"""By mark, what tells why that cannot be had here."""

LONGEST_NAME = 1000
"""Characters of a text that names a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="every fault, every example: what `make test-all` tries")
    parser.addoption(
        "--scale", action="store_true", help="many hosts and many trials alone: what `make test-scale` tries"
    )
    parser.addoption("--alone", action="store_true", help="what wants the machine alone: the end of `make test-all`")
    parser.addoption("--cost", action="store_true", help="what odd texts cost alone, in CPU time: part of `make bench`")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(profiles.THOROUGH if is_thorough(config) else profiles.QUICK)
    heed_signals()


gc.disable()  # what is collected here lives to the end: looking through it again and again took half of this time


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def is_thorough(config: pytest.Config) -> bool:
    return bool(config.getoption("thorough") or config.getoption("scale"))


def heed_signals() -> None:
    """What whoever started us ignores (`nohup`, a job in the background), every program that is tried here would ignore too."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each suite leaves out what another one is there for."""

    def wanted(item: pytest.Item) -> bool:
        for suite in ("scale", "cost", "alone"):
            if config.getoption(suite) or item.get_closest_marker(suite):
                return bool(config.getoption(suite) and item.get_closest_marker(suite))
        return is_thorough(config) or item.get_closest_marker("thorough") is None

    left_out = [item for item in items if not wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted(item)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes and long texts are named by their place alone: an archive packed anew holds the time, and every worker must find
    the same names; and a test's name stands in the environment of all it starts, which has room for 128 KiB."""
    if isinstance(val, bytes):
        return "bytes"
    return "text" if isinstance(val, str) and len(val) > LONGEST_NAME else None


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether every example is wanted: `make test-all` or `make test-scale`."""
    return is_thorough(request.config)


LEFTOVERS = pytest.StashKey[Leftovers]()


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The last test of this worker ends with an error that names what is left of them all, and since when."""
    state = tmp_path_factory.mktemp("state")  # stays where it was, to be looked at
    with own_temporary_folder() as leftovers, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))  # runs of whoever starts the tests are none of theirs
        request.config.stash[LEFTOVERS] = leftovers
        yield
        del request.config.stash[LEFTOVERS]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if leftovers := item.config.stash.get(LEFTOVERS, None):
        leftovers.look(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked with what it needs is skipped where that cannot be had, and fails there if RUNBOOK_LAB=required."""
    missing = [why for mark, look in NEEDED.items() if item.get_closest_marker(mark) for why in look()]
    if not missing:
        return
    reason = f"no lab here: {'; '.join(missing)}"
    if os.environ.get("RUNBOOK_LAB") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def lab_of() -> Iterator[Callable[..., Lab]]:
    """Makes labs: `lab_of(hosts=3)`, `lab_of(names=["gpu-1", "gpu-2"])`. Each is gone when the test ends."""
    with ExitStack() as stack:

        def make(hosts: int = 2, **options: object) -> Lab:
            return stack.enter_context(Lab(hosts, **options))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def two_hosts() -> Iterator[Lab]:
    """node-a and node-b, fresh: a quarter of a second, so no test sees what another one did to them."""
    with Lab(2) as lab:
        yield lab


@pytest.fixture
def temporary_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For programs that leave files in TMPDIR, as torchrun and `mktemp` in a shell line do."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path
