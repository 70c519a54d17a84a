"""Tells every open tab what has changed: a topic and a number, never the data itself. A tab that lost its connection
gives the last number that it saw, and gets the changes that it missed. If that number is too old, or another server's,
the tab gets `*`: everything has changed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

ALL_TOPICS = "*"
"""The topic that stands for all topics."""
MAX_KEPT_CHANGES = 1000
"""How many of the latest changes are kept for streams that come back."""
MAX_PENDING_TOPICS = 200
"""The most topics that wait to be sent on one stream; more become ALL_TOPICS."""
MAX_STREAMS_PER_PERSON = 50
"""The most streams of one person: a tab has one while it is looked at."""
_TOPIC = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}\Z")
_EVENT_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})\Z")


class Subscriber:
    """An event stream of one tab. `pending` has the changes that are not sent yet: each topic once, with the number of
    its last change. `gone`: the client has left."""

    def __init__(self, topics: Iterable[str], owner: str) -> None:
        self.topics = frozenset(topics)
        self.owner = owner
        self.pending: dict[str, int] = {}
        self.woken = asyncio.Event()
        self.closed = False
        self.gone = False

    def tell(self, topic: str, number: int) -> None:
        """Note a change that has to be sent, if the stream is about this topic."""
        if topic != ALL_TOPICS and self.topics and topic not in self.topics:
            return
        if len(self.pending) >= MAX_PENDING_TOPICS:
            self.pending = {}
            topic = ALL_TOPICS
        self.pending.pop(topic, None)  # so that the topics stay in the order of their numbers
        self.pending[topic] = number
        self.woken.set()

    def close(self) -> None:
        self.closed = True
        self.woken.set()


class Changed:
    """The changes, and the event streams that tell them. `publish` may be called from any thread once the server runs;
    all else belongs to the server's event loop."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(4)
        self._number = 0
        self._kept: deque[tuple[int, str]] = deque(maxlen=MAX_KEPT_CHANGES)
        self._latest: dict[str, int] = {}
        self._subscribers: dict[Subscriber, None] = {}  # the oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def start(self) -> None:
        """Has to be called in the event loop that streams will run in."""
        self._loop = asyncio.get_running_loop()

    def publish(self, topic: str) -> None:
        """Report that the subject of this topic has changed: `fleet`, `groups/NAME`, `runs/ID`. A topic has at most 200
        characters and no blanks; raises ValueError for another text."""
        if not _TOPIC.match(topic):
            raise ValueError(f"not a topic: {topic!r}")
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
                self._loop.call_soon_threadsafe(self._tell, topic)

    @property
    def now(self) -> str:
        """The id of the last change; a stream can begin after it."""
        return f"{self.boot}-{self._number}"

    def latest(self, *topics: str) -> int:
        """The number of the last change of any of these topics; 0 for none. Only for topics without a `/`."""
        return max(self._latest.get(topic, 0) for topic in topics)

    def close(self) -> None:
        """End every stream and let no new one begin: the server stops."""
        self.closed = True
        for subscriber in self._subscribers:
            subscriber.close()

    @contextlib.contextmanager
    def subscribed(self, topics: Iterable[str], last_id: str, owner: str) -> Iterator[Subscriber]:
        """A context that gives a stream of these topics (none: all). It begins after the change with the id `last_id`;
        with an empty id, it begins now.

        If its owner has MAX_STREAMS_PER_PERSON other streams already, the oldest of them ends.
        """
        subscriber = Subscriber(topics, owner)
        for number, topic in self._missed(last_id):
            subscriber.tell(topic, number)
        own = [other for other in self._subscribers if other.owner == owner and not other.closed]
        for oldest in own[: max(0, len(own) - MAX_STREAMS_PER_PERSON + 1)]:
            oldest.close()
        self._subscribers[subscriber] = None
        if self.closed:
            subscriber.close()
        try:
            yield subscriber
        finally:
            del self._subscribers[subscriber]

    def __len__(self) -> int:
        return len(self._subscribers)

    def _tell(self, topic: str) -> None:
        self._number += 1
        self._kept.append((self._number, topic))
        if "/" not in topic:
            self._latest[topic] = self._number
        for subscriber in self._subscribers:
            subscriber.tell(topic, self._number)

    def _missed(self, last_id: str) -> list[tuple[int, str]]:
        """The changes after the one with this id, as number and topic; ALL_TOPICS if the id is too old or unknown."""
        if not last_id:
            return []
        known = _EVENT_ID.match(last_id)
        seen = int(known[2]) if known and known[1] == self.boot else -1
        oldest = self._kept[0][0] if self._kept else self._number + 1
        if not oldest - 1 <= seen <= self._number:
            return [(self._number, ALL_TOPICS)]
        return [(number, topic) for number, topic in self._kept if number > seen]


async def event_stream_chunks(changed: Changed, subscriber: Subscriber, ping_s: float) -> AsyncIterator[bytes]:
    """The bytes of the event stream until the subscriber is closed; a comment whenever nothing has changed for
    `ping_s`."""
    yield b"retry: 2000\n: %s\n\n" % changed.boot.encode()
    while not subscriber.closed:
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(subscriber.woken.wait(), ping_s)
        subscriber.woken.clear()
        pending, subscriber.pending = subscriber.pending, {}
        for topic, number in pending.items():
            yield f"id: {changed.boot}-{number}\nevent: changed\ndata: {topic}\n\n".encode()
        if not pending and not subscriber.closed:
            yield b": still here\n\n"
