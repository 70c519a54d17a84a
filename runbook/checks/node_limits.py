"""What it means when a node refuses one of our programs something that every program needs: files, processes, memory, ports."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.model.verdict import Finding


@dataclass(frozen=True, slots=True)
class _Limit:
    """`errnos` and `words` are how a program meets it; `says` and `remedy` may use {node} and {program}."""

    cause: str
    errnos: tuple[str, ...]
    words: re.Pattern[str]
    says: str
    remedy: str


_LIMITS = (
    _Limit(
        "open-files-limit",
        ("EMFILE", "ENFILE"),
        re.compile(r"Too many open files"),
        "the {program} program on {node} may have no more files open",
        "on {node}: `ulimit -n` shows the limit of the login, `cat /proc/sys/fs/file-nr` that of the machine; `printf '* - nofile "
        "65536\\n' | sudo tee /etc/security/limits.d/99-files.conf`, then log in again",
    ),
    _Limit(
        "process-limit",
        ("EAGAIN",),
        re.compile(r"can't start new thread|[Cc]annot fork|fork: retry|Resource temporarily unavailable"),
        "{node} lets its login start no more processes or threads: the {program} program could not go on",
        "on {node}: `ps -L -u $USER | wc -l` against `ulimit -u`, raised by `printf '* - nproc 65536\\n' | sudo tee "
        "/etc/security/limits.d/99-processes.conf` and a new login; `cat /sys/fs/cgroup/pids.max` where it is a container or "
        "a service; and `ulimit -v`, which threads need as well",
    ),
    _Limit(
        "ephemeral-ports-exhausted",
        ("EADDRNOTAVAIL",),
        re.compile(r"Cannot assign requested address"),
        "{node} has no local port left for the {program} program",
        "on {node}: `sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'`; `sudo ss -Htanp` shows who holds them",
    ),
    _Limit(
        "workdir-not-writable",
        ("EFBIG",),
        re.compile(r"File too large"),
        "logins on {node} may write no file as large as the {program} program (ulimit -f)",
        "on {node}: `ulimit -f` shows the limit; `printf '* - fsize unlimited\\n' | sudo tee /etc/security/limits.d/99-fsize.conf`, "
        "then log in again",
    ),
)


def limit_met(node: str, program: str, errno: str, words: str) -> Finding | None:
    """The limit that a program of ours met on a node. `errno`: its name, or nothing; `words`: what the program said."""
    for limit in _LIMITS:
        said = limit.words.search(words)
        if errno in limit.errnos or (said and not errno):
            shown = next((line.strip() for line in words.splitlines() if limit.words.search(line)), words.strip())
            return Finding(
                limit.cause,
                limit.says.format(node=node, program=program),
                limit.remedy.format(node=node),
                (f"{shown[:200]}{f' ({errno})' if errno else ''}",),
            )
    return None
