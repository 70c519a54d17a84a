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
from pathlib import Path

import runbook
from runbook.collect.gather import Gathered
from runbook.collect.members import Taken
from runbook.collect.readme import readme

MODE = 0o600


def archive_files(gathered: Gathered, name: str, when: float) -> dict[str, bytes]:
    """Every member by its path, in order: first what tells about the others."""
    files: dict[str, bytes] = {}
    taken = Taken()
    for ours in ("README.txt", "manifest.json"):
        taken.take(ours)
    described: list[dict[str, object]] = []
    for entry in gathered.entries:
        path = taken.take(entry.path)
        # What no UTF-8 can carry was no text anyway: half of a pair that a log was cut at.
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
    """Raises FileExistsError where somebody was faster, or OSError; in both cases nothing is left behind."""
    folder = out.resolve().parent
    descriptor, draft = tempfile.mkstemp(prefix=".runbook-collect-", dir=folder)  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, out)  # fails where the file is there by now, which a rename would not
        except FileExistsError:
            raise
        except OSError:  # no hard links here
            if out.exists():
                raise FileExistsError(str(out)) from None
            Path(draft).rename(out)
    finally:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
