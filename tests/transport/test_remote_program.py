"""What a program on a node prints, taken apart: messages, its log, and what is neither text nor has an end."""

from __future__ import annotations

import json

from runbook.transport.remote_program import MAX_UNFINISHED_LINE_BYTES, MESSAGE_MARK, _Text


def read(*pieces: bytes) -> tuple[list[bytes], str]:
    messages: list[bytes] = []
    log: list[str] = []

    def on_message(body: bytes, _whole: bool) -> bool:
        messages.append(body)
        return body.startswith(b"{")

    text = _Text(on_message, log.append, marked=True)
    for piece in pieces:
        text.feed(piece)
    return messages, "".join(log)


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    endless = b"x" * (3 * MAX_UNFINISHED_LINE_BYTES)
    mark = MESSAGE_MARK + b'{"event": "beat"}\n'
    messages, log = read(endless, mark[:4], mark[4:])
    assert messages == [b'{"event": "beat"}'], "what comes behind it is still heard"
    assert set(log) == {"x"}
    assert len(log) >= 2 * MAX_UNFINISHED_LINE_BYTES


def test_a_long_message_arrives_in_any_pieces() -> None:
    body = json.dumps({"text": "y" * 3 * MAX_UNFINISHED_LINE_BYTES}).encode()
    line = b"a log line\nbefore it " + MESSAGE_MARK + body + b"\nafter\n"
    for size in (1, 7, 8, 9, 1000, 65536, len(line)):
        pieces = [line[at : at + size] for at in range(0, len(line), size)]
        assert read(*pieces) == ([body], "a log line\nafter\n"), size
