"""What the tests of tests/gpu need of the Python that runs them, in words. Standard library only.

Run as a program: `needs.py gpu` prints why there is no GPU to test on, one sentence, and nothing where there is one;
`needs.py packages` prints what pip has to install beside torch; `needs.py folders` the folders of this Python's packages.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import sysconfig

PACKAGES = {
    "pytest": "pytest",
    "yaml": "pyyaml",
    "jsonschema": "jsonschema",
    "jinja2": "jinja2",
    "rich": "rich",
    "fabric": "fabric",
    "paramiko": "paramiko",
}
"""Modules that runbook and its tests import, and the packages that bring them."""


@functools.cache
def gpu_missing() -> str | None:
    """Why nothing can be tried on a GPU here; None where it can."""
    if shutil.which("nvidia-smi") is None:
        return "there is no nvidia-smi here, so no NVIDIA GPU or no driver for it"
    try:
        import torch
    except ImportError:
        return (
            f"{sys.executable} has no torch: name a Python that has one, `make test-gpu TORCH_PYTHON=/path/to/python`"
        )
    here = f"torch {torch.__version__} of {sys.executable}"
    if torch.version.cuda is None:
        return f"{here} was built without CUDA: name another one, `make test-gpu TORCH_PYTHON=/path/to/python`"
    if not torch.cuda.is_available():
        return f"{here}, built for CUDA {torch.version.cuda}, sees no GPU"
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return f"{here} was built without NCCL"
    return None


def missing_packages() -> list[str]:
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def folders() -> list[str]:
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


if __name__ == "__main__":
    told = {"gpu": lambda: [gpu_missing() or ""], "packages": missing_packages, "folders": folders}[sys.argv[1]]()
    print("\n".join(told))
