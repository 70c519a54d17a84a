"""Where a made inventory goes: to stdout, or whole or not at all into a file that was not there before."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runbook.model.commands import word
from runbook.model.errors import FilesWrong, Problem
from runbook.report.output import stderr, stdout


def refuse_to_replace(out: str | None, *, force: bool) -> None:
    """Raises FilesWrong before any work is done for a file that could not be written."""
    if out is None:
        return
    if Path(out).is_dir():
        raise FilesWrong(
            [Problem("arguments.out", f"--out {out} is a folder", None, f"name a file: --out {out}/inventory.yml")]
        )
    if os.path.lexists(out) and not force:
        raise FilesWrong([Problem("arguments.out", f"--out {out}: the file exists", None, "--force replaces it")])
    if not Path(out).resolve().parent.is_dir():
        raise FilesWrong(
            [
                Problem(
                    "arguments.out",
                    f"--out {out}: there is no folder {Path(out).parent}",
                    None,
                    "make it, or name another",
                )
            ]
        )


def write_product(text: str, out: str | None) -> None:
    """Raises FilesWrong where the file cannot be written; what was there then still is.

    What to do next is said on stderr, and only where the text itself is not what the user gets to see.
    """
    if out is None:
        stdout.tell(text)
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=Path(out).resolve().parent, prefix=".runbook-", delete=False
        ) as file:
            file.write(text)
        try:
            Path(file.name).chmod(0o666 & ~_umask())
            Path(file.name).replace(Path(out).resolve())
        except OSError:
            Path(file.name).unlink()
            raise
    except OSError as error:
        raise FilesWrong([Problem("arguments.out", f"--out {out}: {error.strerror or error}")]) from None
    stderr.line(f"wrote {out}; next: runbook lint {word(out)}")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
