"""The event stream: nothing is missed, nothing is told twice, and nobody slow is waited for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from runbook.serve.change_stream import (
    ALL_TOPICS,
    MAX_KEPT_CHANGES,
    MAX_PENDING_TOPICS,
    MAX_STREAMS_PER_PERSON,
    Changed,
    Subscriber,
    event_stream_chunks,
)


def on(look: Any) -> None:
    asyncio.run(look())


async def told(changed: Changed, subscriber: Subscriber) -> list[str]:
    """The topics that the stream tells now, without its comments."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    topics, subscriber.pending = list(subscriber.pending), {}
    return topics


def begun() -> Changed:
    changed = Changed()
    changed.start()
    return changed


def test_what_changes_is_told_to_whom_it_concerns() -> None:
    async def look() -> None:
        changed = begun()
        with changed.subscribed(["fleet"], "", "eve") as fleet, changed.subscribed([], "", "eve") as all_of_it:
            for topic in ("fleet", "runs/1", "fleet"):
                changed.publish(topic)
            assert await told(changed, fleet) == ["fleet"]
            assert await told(changed, all_of_it) == ["runs/1", "fleet"]
        assert len(changed) == 0

    on(look)


def test_a_stream_that_was_cut_gets_what_it_missed() -> None:
    async def look() -> None:
        changed = begun()
        with changed.subscribed([], "", "eve") as first:
            changed.publish("a")
            changed.publish("b")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert first.pending == {"a": 1, "b": 2}
        changed.publish("c")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cases = [("", []), ("1", ["b", "c"]), ("2", ["c"]), ("3", []), ("4", ["*"]), ("99999999999999999", ["*"])]
        for last, wanted in cases:
            identity = f"{changed.boot}-{last}" if last else ""
            with changed.subscribed([], identity, "eve") as again:
                assert list(again.pending) == wanted, last
        for foreign in ("00000000-1", "x", "\n", f"{changed.boot}-"):  # of another server, or of nobody
            with changed.subscribed(["c"], foreign, "eve") as again:
                assert list(again.pending) == [ALL_TOPICS], foreign

    on(look)


def test_a_page_hears_of_what_changed_since_it_was_read() -> None:
    async def look() -> None:
        changed = begun()
        changed.publish("before")
        await asyncio.sleep(0)
        seen = changed.now
        with changed.subscribed([], seen, "eve") as stream:
            assert list(stream.pending) == []
        changed.publish("meanwhile")
        await asyncio.sleep(0)
        with changed.subscribed([], seen, "eve") as stream:
            assert list(stream.pending) == ["meanwhile"]
        with changed.subscribed([], Changed().now, "eve") as stream:  # the page of another server
            assert list(stream.pending) == [ALL_TOPICS]

    on(look)


def test_what_is_too_long_ago_is_everything() -> None:
    async def look() -> None:
        changed = begun()
        for number in range(MAX_KEPT_CHANGES + 5):
            changed.publish(f"t{number}")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with changed.subscribed(["t1004"], f"{changed.boot}-4", "eve") as again:
            assert list(again.pending) == [ALL_TOPICS]
        with changed.subscribed(["t1004"], f"{changed.boot}-5", "eve") as again:
            assert list(again.pending) == ["t1004"]

    on(look)


def test_a_slow_stream_holds_a_bounded_number_of_topics() -> None:
    subscriber = Subscriber([], "eve")
    for number in range(MAX_PENDING_TOPICS * 3):
        subscriber.tell(f"t{number}", number)
    assert ALL_TOPICS in subscriber.pending
    assert len(subscriber.pending) <= MAX_PENDING_TOPICS


def test_one_person_has_a_bounded_number_of_streams_and_the_oldest_ends() -> None:
    async def look() -> None:
        changed = begun()
        with changed.subscribed([], "", "bob") as other:
            streams = [changed.subscribed([], "", "eve") for _ in range(MAX_STREAMS_PER_PERSON + 1)]
            opened = [stream.__enter__() for stream in streams]
            assert [one.closed for one in opened] == [True] + [False] * MAX_STREAMS_PER_PERSON
            assert not other.closed
            for stream in streams:
                stream.__exit__(None, None, None)

    on(look)


def test_the_wire_is_what_browsers_read() -> None:
    async def look() -> None:
        changed = begun()
        with changed.subscribed([], "", "eve") as subscriber:
            stream = event_stream_chunks(changed, subscriber, 0.01)
            assert (await anext(stream)).startswith(b"retry: 2000\n")
            assert await anext(stream) == b": still here\n\n"
            changed.publish("groups/train")
            assert await anext(stream) == f"id: {changed.boot}-1\nevent: changed\ndata: groups/train\n\n".encode()
            changed.close()
            assert [message async for message in stream] == []

    on(look)


def test_threads_may_publish_and_nobody_listens_after_the_end() -> None:
    async def look() -> None:
        changed = begun()
        with changed.subscribed([], "", "eve") as subscriber:
            thread = threading.Thread(target=changed.publish, args=("fleet",))
            thread.start()
            await asyncio.wait_for(subscriber.woken.wait(), 30)
            thread.join()
            assert subscriber.pending == {"fleet": 1}
        changed.close()
        with changed.subscribed([], "", "eve") as late:
            assert late.closed

    on(look)
    changed = Changed()
    changed.publish("fleet")  # before there is a server


@pytest.mark.parametrize("topic", ["", "a b", "a\nid: 1", "a\r", "x" * 201, "\x00"])
def test_a_topic_cannot_write_into_the_stream(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        Changed().publish(topic)
