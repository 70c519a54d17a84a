"""What a program on a node prints, taken apart: messages, its log, and what is neither text nor has an end."""

from __future__ import annotations

import json
from typing import Any

from runbook.transport.remote import LONGEST_LINE, MARK, _Text


def read(*pieces: bytes) -> tuple[list[dict[str, Any]], str]:
    messages: list[dict[str, Any]] = []
    log: list[str] = []
    text = _Text(messages.append, log.append, True)
    for piece in pieces:
        text.feed(piece)
    return messages, "".join(log)


def test_bytes_that_are_no_text_can_be_printed() -> None:
    name = b"/data/caf\xe9".decode(errors="surrogateescape")
    said = {"text": f"no such file: {name} 💥", "list": [{"path": name}], name: 1}
    messages, _ = read(MARK + json.dumps(said).encode() + b"\n")
    assert messages == [{"text": "no such file: /data/caf? 💥", "list": [{"path": "/data/caf?"}], "/data/caf?": 1}]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    endless = b"x" * (3 * LONGEST_LINE)
    mark = MARK + b'{"event": "beat"}\n'
    messages, log = read(endless, mark[:4], mark[4:])
    assert messages == [{"event": "beat"}], "what comes behind it is still heard"
    assert set(log) == {"x"}
    assert len(log) >= 2 * LONGEST_LINE
