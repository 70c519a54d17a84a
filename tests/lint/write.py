"""Files for tests, written where they are to be linted."""

from __future__ import annotations

from pathlib import Path

from runbook.lint.run import lint

PAIR = "nodes:\n  node-a: {address: 10.0.0.1}\n  node-b: {address: 10.0.0.2}\n"
PING = "stages:\n  - check: ping\n"


def write(folder: Path, **files: str | bytes) -> None:
    """`inventories__a_yml="…"` is written to inventories/a.yml."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_yml", ".yml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def ids(*paths: str | Path) -> list[str]:
    """What is found, as `file:line rule` with the file's name alone."""
    findings = lint([str(path) for path in paths]).findings
    return [f"{Path(finding.span.file).name}:{finding.span.line} {finding.rule.id}" for finding in findings]
