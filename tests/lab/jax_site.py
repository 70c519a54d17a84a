"""JAX for the hosts of a lab: nothing else of ours needs it, so it is fetched only for the tests that do."""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from .lab import CHECKOUT

# jax 0.10.2 with what its metadata asks for; no more is needed on CPUs.
PINNED = ("jax==0.10.2", "jaxlib==0.10.2", "ml-dtypes==0.6.0", "numpy==2.4.6", "opt-einsum==3.4.0", "scipy==1.17.1")
INSTALL_S = 300


class NoJax(Exception):
    """pip could not install it here; the message says why."""


@functools.cache
def jax_site() -> Path:
    """A folder of packages with JAX, for `Lab(sites=[...])`: made once, below the project's .venv. Raises NoJax."""
    kept = CHECKOUT / ".venv" / f"{PINNED[0].replace('==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}"
    kept.parent.mkdir(exist_ok=True)
    with (kept.parent / "jax.lock").open("w") as lock:  # of tests beside each other one fetches it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_dir():
            _fetch(kept)
    return kept


def _fetch(kept: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="jax.", dir=kept.parent) as folder:
        made = Path(folder, "site")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--only-binary", ":all:"]
        try:
            done = subprocess.run(
                [*pip, "--target", str(made), *PINNED],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoJax(f"pip had not installed {PINNED[0]} after {INSTALL_S} s") from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
            raise NoJax((errors or done.stderr.splitlines() or ["pip said nothing"])[-1])
        made.rename(kept)
