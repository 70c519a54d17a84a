"""What the tests of launch scripts need of this machine beside Python, and what of it is missing.

Run as a program, prints the Debian packages that are missing, one a line, so that a Makefile can install them.
"""

from __future__ import annotations

import shutil

PROGRAMS: dict[str, str] = {
    "dash": "dash",
    "bash": "bash",
    "shellcheck": "shellcheck",
    "wine": "wine",
    "wineserver": "wine64",
    "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64-win32",
}


def missing_packages(*programs: str) -> list[str]:
    """Debian packages to install before these programs (all of ours, if none are named) can be had."""
    return sorted({PROGRAMS[name] for name in programs or PROGRAMS if shutil.which(name) is None})


if __name__ == "__main__":
    print("\n".join(missing_packages()))
