"""Which Python a job would use: one with torch, the same version of it everywhere, and one path if there is one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PythonFound:
    path: str
    version: str
    torch: str | None
    cuda: str | None = None  # the CUDA that torch was built for; None: none
    hip: str | None = None

    @property
    def about(self) -> str:
        built = f", CUDA {self.cuda}" if self.cuda else f", ROCm {self.hip}" if self.hip else ", no CUDA in it"
        return f"Python {self.version}, torch {self.torch}{built}"


def pythons_of(answer: Mapping[str, Any]) -> list[PythonFound]:
    """What a host said, its own order kept."""
    return [
        PythonFound(str(one["path"]), str(one["version"]), one.get("torch"), one.get("cuda"), one.get("hip"))
        for one in answer.get("pythons", [])
        if one.get("path")
    ]


def choose(found: Mapping[str, Sequence[PythonFound]], *, gpus: bool) -> dict[str, PythonFound]:
    """A Python with torch for every host that has one; torch that can use the GPUs before torch that cannot.

    torch must be of one version on all nodes, so that is looked for first, then one path for all.
    """
    with_torch = {name: [one for one in listed if one.torch] for name, listed in found.items()}
    with_torch = {name: listed for name, listed in with_torch.items() if listed}
    if not with_torch:
        return {}

    def merit(python: PythonFound) -> tuple[bool, tuple[int, ...]]:
        return gpus and bool(python.cuda or python.hip), _numbers(python.torch or "")

    hosts = list(with_torch.values())
    paths = [one for one in hosts[0] if all(any(_alike(one, other, path=True) for other in rest) for rest in hosts[1:])]
    versions = [
        one for one in hosts[0] if all(any(_alike(one, other, path=False) for other in rest) for rest in hosts[1:])
    ]
    best_path = max(paths, key=merit, default=None)
    best_version = max(versions, key=merit, default=None)
    if best_path is not None and best_version is not None and merit(best_path)[0] >= merit(best_version)[0]:
        return {
            name: next(one for one in listed if _alike(best_path, one, path=True))
            for name, listed in with_torch.items()
        }
    if best_version is not None:
        return {
            name: next(one for one in listed if _alike(best_version, one, path=False))
            for name, listed in with_torch.items()
        }
    return {name: max(listed, key=merit) for name, listed in with_torch.items()}


def _alike(one: PythonFound, other: PythonFound, *, path: bool) -> bool:
    return one.torch == other.torch and one.cuda == other.cuda and (not path or one.path == other.path)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version.partition("+")[0])[:3]))
