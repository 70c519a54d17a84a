"""What an extra of this package brings, installed by its own requirements: in public indexes the name `runbook` is
another project's."""

from __future__ import annotations

import re
import sys

from runbook.model.command_quoting import word
from runbook.model.errors import FilesWrong


def required_by_us(module: str | None) -> str | None:
    """The module, where a run of ours cannot do without it and this Python does not have it: a checkout that was not
    installed, or another Python than the one it was installed into."""
    return module if module in ("fabric", "jinja2", "jsonschema", "msgspec", "paramiko", "rich", "yaml") else None


def not_installed(extra: str, command: str, module: str) -> FilesWrong:
    """The error of a command that needs `module`, which `extra` brings."""
    return FilesWrong.of(f"{extra}.not-installed", f"`runbook {command}` needs {module}", help=_install(extra))


def _install(extra: str) -> str:
    """The command that installs into this Python what an extra brings."""
    from importlib.metadata import PackageNotFoundError, requires  # takes longer to load than all else that starts

    try:
        declared = requires("runbook") or []
    except PackageNotFoundError:  # a checkout that was never installed
        return f"in the checkout: {word(sys.executable)} -m pip install '.[{extra}]'"
    its_own = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
    needed = [line.partition(";")[0].strip() for line in declared if its_own.search(line.partition(";")[2])]
    return " ".join(map(word, [sys.executable, "-m", "pip", "install", *needed]))
