"""Gathered texts as one .tar.gz: whole or not at all, for its owner alone, and the same bytes for the same texts."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jinja2

import runbook
from runbook.collect.archive_entries import UNFIT, UsedPaths
from runbook.collect.ask_nodes import NodeAnswer
from runbook.collect.gather import Gathered


def readme(gathered: Gathered, name: str) -> str:
    """What whoever unpacks it reads first."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.collect", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template("README.txt.j2").render(
        name=gathered.scrubber.text(name),
        version=runbook.__version__,
        hidden=gathered.scrubber.machines is not None,
        counts=counts(gathered),
        nodes=list(_nodes(gathered)),
    )


def counts(gathered: Gathered) -> str:
    """`3 secrets, 1 user name, no e-mail address`."""

    def count(number: int, word: str, many: str) -> str:
        return f"{number or 'no'} {word if number in (0, 1) else many}"

    return ", ".join(
        (
            count(gathered.secrets, "secret", "places with a secret"),
            count(gathered.people, "user name", "user names"),
            count(gathered.mails, "e-mail address", "e-mail addresses"),
        )
    )


def _nodes(gathered: Gathered) -> Iterator[str]:
    if not gathered.nodes:
        yield "  none was asked: there was no inventory"
    kinds = Counter((one.node, one.kind) for one in gathered.absent)
    for node in gathered.nodes:
        shown = gathered.scrubber.text(node.node)
        if node.asked:
            yield f"  {shown}: {counted(node, *(kinds[shown, kind] for kind in ('missing', 'denied', UNFIT)))}"
        else:
            yield f"  {shown}: not asked: {node.cause}: {gathered.scrubber.text(node.says)}"


def counted(node: NodeAnswer, missing: int, denied: int, unfit: int) -> str:
    """`71 answers, 14 tools or files are not there, 6 would need root`."""
    parts = [f"{len(node.entries)} answers"]
    parts += [f"{missing} tools or files are not there"] * bool(missing)
    parts += [f"{denied} need rights that this login does not have"] * bool(denied)
    parts += [f"{unfit} were not what is sent for them, and are left out"] * bool(unfit)
    return ", ".join(parts)


MODE = 0o600


def archive_files(gathered: Gathered, name: str, when: float) -> dict[str, bytes]:
    """Every member by its path, in order: first those that describe the others."""
    files: dict[str, bytes] = {}
    taken = UsedPaths()
    for ours in ("README.txt", "manifest.json"):
        taken.take(ours)
    described: list[dict[str, object]] = []
    for entry in gathered.entries:
        path = taken.take(entry.path)
        # A character that UTF-8 cannot carry: half of a surrogate pair, where a log was cut.
        data = entry.text.encode("utf-8", "replace")
        files[path] = data
        described.append(
            {
                "path": path,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "node": entry.node,
                "command": entry.command,
                "exit_code": entry.code,
                "seconds": entry.seconds,
                "truncated": entry.left_out > 0,
                "bytes_left_out": entry.left_out,
                "trouble": entry.trouble,
                "missing": None,
            }
        )
    described += [
        {"path": None, "what": one.what, "node": one.node, "command": one.command, "missing": one.why, "kind": one.kind}
        for one in gathered.absent
    ]
    page = readme(gathered, name).encode("utf-8", "replace")
    manifest = {
        "version": 1,
        "runbook": runbook.__version__,
        "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        "taken_out": {"secrets": gathered.secrets, "people": gathered.people, "mail_addresses": gathered.mails},
        "addresses_hidden": gathered.scrubber.machines is not None,
        "files": [{"path": "README.txt", "size": len(page), "sha256": hashlib.sha256(page).hexdigest()}, *described],
    }
    return {"README.txt": page, "manifest.json": json.dumps(manifest, indent=1).encode() + b"\n", **files}


def packed(files: dict[str, bytes], when: float) -> bytes:
    """The archive's bytes. No owner, no host, no path of this machine is in its headers."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=int(when)) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), int(when), MODE
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(data: bytes, out: Path) -> None:
    """Raises FileExistsError if the file exists by now, or OSError; in both cases nothing is left behind."""
    folder = out.resolve().parent
    descriptor, draft = tempfile.mkstemp(prefix=".runbook-collect-", dir=folder)  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, out)  # fails if the file exists by now, which a rename would not
        except FileExistsError:
            raise
        except OSError:  # no hard links here
            if out.exists():
                raise FileExistsError(str(out)) from None
            Path(draft).rename(out)
    finally:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
