"""Frames and answers as a node sends them: cut in any pieces, described to the letter, made in any thread."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.transport import node_answers
from runbook.transport.frames import MAX_PAYLOAD_BYTES, FrameReader, UnexpectedAnswer, decode_json

AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-6)
from runbook.transport import node_answers, frames
described = [node_answers.GpusAnswer, node_answers.IbstatAnswer, node_answers.PingAnswer, node_answers.Adapters, node_answers.SurveyAnswer]
described += [node_answers.Listed, node_answers.Hello]
for _ in range(150):
    for one in described:
        for kind in vars(node_answers).values():  # as in a program that has just begun
            if isinstance(kind, type) and '__msgspec_cache__' in vars(kind):
                del kind.__msgspec_cache__
    frames._DECODERS.clear()
    together = threading.Barrier(6)
    def first():
        together.wait()
        for one in described:
            try:
                frames.decode_json(b'{"gpu": {}, "targets": [{}], "ibstat": {}}', one)
            except frames.UnexpectedAnswer:
                pass
    threads = [threading.Thread(target=first) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_the_first_answers_of_many_nodes_may_come_at_once() -> None:
    """Without a lock this ends by signal 11, mostly within the first rounds."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr[-2000:]) == (0, "")


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 200))
def test_frames_come_whole_in_whatever_pieces_they_arrive(payloads: list[bytes], size: int) -> None:
    sent = b"".join(
        json.dumps({"event": "output", "id": at, "stream": 1, "bytes": len(payload)}).encode() + b"\n" + payload
        for at, payload in enumerate(payloads)
    )
    reader = FrameReader()
    found = [pair for at in range(0, len(sent), size) for pair in reader.feed(sent[at : at + size])]
    assert [(frame.id, payload) for frame, payload in found] == list(enumerate(payloads))


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b"null",
        b'{"event": "no such"}',
        b'{"event": "exit", "code": "0"}',
        b'{"event": "output", "bytes": -1}',
        b'{"event": "output", "bytes": %d}' % (MAX_PAYLOAD_BYTES + 1),
        b'{"event": "beat", "time": NaN}',
        b'{"event": "output", "stream": 3}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_no_supervisor_says(line: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        list(FrameReader().feed(line + b"\n"))


def test_bytes_that_are_no_text_can_be_printed() -> None:
    """A name of bytes that are no text comes as half of a surrogate pair; a pair that is whole stays, and so does an
    escaped `\\u`."""
    name = b"/data/caf\xe9".decode(errors="surrogateescape")
    said = json.dumps({"path": name, "text": "💥 \\ud800"}).encode()
    assert decode_json(said, dict[str, str]) == {"path": "/data/caf?", "text": "💥 \\ud800"}


def test_an_answer_is_one_to_what_was_asked() -> None:
    said = json.dumps({"address": None, "ports": {"1": {"free": True}}, "unprivileged": 1024}).encode()
    assert node_answers.decode_answer("port", {"ports": [1]}, said)["ports"] == {"1": {"free": True}}
    with pytest.raises(UnexpectedAnswer, match="it is about 1, and was asked for 1, 2"):
        node_answers.decode_answer("port", {"ports": [1, 2]}, said)
