"""What the tests of launch scripts need of this machine beside Python, and what of it is missing.

Run as a program, prints the Debian packages that are missing, one a line, so that a Makefile can install them.
"""

from __future__ import annotations

import os
import shutil

import pytest

PROGRAMS: dict[str, str] = {
    "dash": "dash",
    "bash": "bash",
    "busybox": "busybox",
    "shellcheck": "shellcheck",
    "wine": "wine",
    "wineserver": "wine64",
    "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64-win32",
}


def missing_packages(*programs: str) -> list[str]:
    """Debian packages to install before these programs (all of ours, if none are named) can be had."""
    return sorted({PROGRAMS[name] for name in programs or PROGRAMS if shutil.which(name) is None})


def require(*programs: str) -> None:
    """Skip a test that needs programs which are not here; where CI requires them, it fails."""
    missing = missing_packages(*programs)
    if not missing:
        return
    reason = f"Debian packages missing: {' '.join(missing)}"
    if os.environ.get("RUNBOOK_LAB") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


if __name__ == "__main__":
    print("\n".join(missing_packages()))
