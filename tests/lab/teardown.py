"""Takes a lab apart: after its own run, or later for one whose process died before it could.

Every lab is written down in a register before its first namespace is made, with the process that owns it. The next lab
that starts takes apart those whose owner is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from .processes import call, kill_network, wait_until

REGISTER = Path("/run/runbook-lab")
NETNS = Path("/run/netns")
TMP_PREFIX = "runbook-lab-"
# <pid of the owner><letters>: names the lab everywhere. An interface name has room for 15 characters only.
NETNS_NAME = re.compile(r"runbook-lab-((\d+)[a-z]+)-.+")


def started(pid: int) -> str | None:
    """When a process started, in clock ticks: a pid alone may have been given to someone else since."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Held while a subnet and a uid are chosen and while leftovers are taken apart, so that two labs do not meet there."""
    REGISTER.mkdir(mode=0o700, exist_ok=True)
    with (REGISTER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def netns_name(lab: str, host: str) -> str:
    return f"runbook-lab-{lab}-{host}"


def link_name(lab: str) -> str:
    """This machine's end of the cable to the lab's bridge."""
    return f"rb{lab}"


def register(lab: str, tmp: Path, uid: int) -> None:
    record = {"pid": os.getpid(), "started": started(os.getpid()), "tmp": str(tmp), "uid": uid}
    (REGISTER / f"{lab}.json").write_text(json.dumps(record))


def registered_uids() -> set[int]:
    """The ordinary users of all labs that stand. Called with `one_at_a_time` held."""
    uids = set()
    for record in REGISTER.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # one that is being taken down
            uids.add(int(json.loads(record.read_text())["uid"]))
    return uids


def namespaces(lab: str) -> list[str]:
    """Names of the network namespaces of one lab."""
    if not NETNS.is_dir():
        return []
    return sorted(entry.name for entry in NETNS.iterdir() if entry.name.startswith(netns_name(lab, "")))


def dismantle(lab: str, tmp: Path | None) -> None:
    """Kill what lives in the lab's namespaces, then remove them, the link to them and the folder. Can be repeated."""
    names = namespaces(lab)
    inodes = set()
    for name in names:
        with contextlib.suppress(OSError):
            inodes.add((NETNS / name).stat().st_ino)
    kill_network(inodes)
    batch = "".join(f"netns delete {name}\n" for name in names)
    link = Path("/sys/class/net", link_name(lab))
    if link.exists():
        # Named first: a namespace is freed some time after its name is, and the link would stay for as long.
        batch = f"link delete {link.name}\n{batch}"
    if batch:
        call(["ip", "-force", "-batch", "-"], stdin=batch, check=False)
    wait_until(f"removing the namespaces of lab {lab}", lambda: not namespaces(lab) and not link.exists())
    if tmp is not None and tmp.name.startswith(TMP_PREFIX):
        shutil.rmtree(tmp, ignore_errors=True)
    (REGISTER / f"{lab}.json").unlink(missing_ok=True)


def sweep() -> list[str]:
    """Take apart the labs of processes that are gone. Called with `one_at_a_time` held."""
    dead: dict[str, Path | None] = {}
    living: set[str] = set()
    for record in REGISTER.glob("*.json"):
        try:
            known = json.loads(record.read_text())
            pid, since, tmp = int(known["pid"]), known["started"], Path(known["tmp"])
        except (OSError, ValueError, KeyError):
            record.unlink(missing_ok=True)  # cut short while it was written: no namespace was made yet
            continue
        if started(pid) == since:
            living.add(record.stem)
        else:
            dead[record.stem] = tmp
    if NETNS.is_dir():
        for entry in NETNS.iterdir():
            match = NETNS_NAME.fullmatch(entry.name)
            if match and match[1] not in living | dead.keys() and started(int(match[2])) is None:
                dead[match[1]] = None
    for lab, folder in dead.items():
        dismantle(lab, folder)
    return sorted(dead)
