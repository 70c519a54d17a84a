"""Says how to install what an extra of this package brings: by the extra's own requirements, since in public indexes
the name `runbook` is another project's."""

from __future__ import annotations

import re
import sys

from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong


def missing_core_module(module: str | None) -> str | None:
    """The name of a missing module if runbook cannot do without it, None for other modules. Such a module is missing in
    a checkout that was not installed, and in another Python than the one into which runbook was installed."""
    return module if module in ("fabric", "jinja2", "jsonschema", "msgspec", "paramiko", "rich", "yaml") else None


def not_installed_error(extra: str, command: str, module: str) -> FilesWrong:
    """The error of a command that needs `module`, which `extra` brings."""
    return FilesWrong.of(f"{extra}.not-installed", f"`runbook {command}` needs {module}", help=_install_command(extra))


def _install_command(extra: str) -> str:
    """The command that installs what an extra brings into this Python."""
    from importlib.metadata import PackageNotFoundError, requires  # takes longer to load than all else that starts

    try:
        declared = requires("runbook") or []
    except PackageNotFoundError:  # a checkout that was never installed
        return f"in the checkout: {shell_word(sys.executable)} -m pip install '.[{extra}]'"
    its_own = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
    needed = [line.partition(";")[0].strip() for line in declared if its_own.search(line.partition(";")[2])]
    return " ".join(map(shell_word, [sys.executable, "-m", "pip", "install", *needed]))
