"""Writes the messages of a program that was started on a node: one JSON object a line, after a mark that no other
program prints."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_MARK = "\x1erunbook "


def write_message(message: dict[str, Any]) -> None:
    line = (MESSAGE_MARK + json.dumps(message) + "\n").encode()
    while line:
        line = line[os.write(1, line) :]  # a signal may interrupt a write for which the pipe has no room
