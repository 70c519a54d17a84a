"""TOML, which Python reads by itself from 3.11 on; and the tables of our own that are written in it."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["own_table", "tomllib"]


def own_table(package: str, *path: str) -> dict[str, Any]:
    """A file of ours that lies in a package."""
    return tomllib.loads(resources.files(package).joinpath(*path).read_text("utf-8"))
