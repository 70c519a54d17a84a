"""What is wrong with one variable, before anybody knows where in a file it stands."""

from __future__ import annotations

from typing import NamedTuple


class VariableFault(NamedTuple):
    """`id` without the family: `unknown-variable`. With `of_name` the name is to be shown, not the value."""

    id: str
    message: str
    help: str | None = None
    of_name: bool = False
