"""What many tabs ask for at once is made once, and not for longer than it may be shown."""

from __future__ import annotations

import threading

from runbook.serve.shared_cache import Recent


class World:
    """A clock, a count of changes, and a value that is made of both."""

    def __init__(self) -> None:
        self.clock, self.changes, self.made = 100.0, 0, list[int]()
        self.recent = Recent[int](1.0, lambda: self.changes, lambda: self.clock)

    def get(self, key: str) -> int:
        return self.recent.get(key, self.make)

    def renew(self, key: str) -> None:
        self.recent.renew(key, self.make)

    def make(self) -> int:
        self.made.append(len(self.made))
        return self.made[-1]


def test_it_is_made_again_once_it_is_old_or_its_key_is_another() -> None:
    world = World()
    assert [world.get("a"), world.get("a"), world.get("b")] == [0, 0, 1]
    world.clock += 2.0
    assert [world.get("a"), world.get("a")] == [2, 2]
    world.clock += 2.1
    assert [world.get("c"), world.get("a")] == [3, 4]


def test_who_has_answered_with_an_old_one_makes_the_next() -> None:
    world = World()
    assert world.get("a") == 0
    world.clock += 0.9
    world.renew("a")
    assert (world.get("a"), world.made) == (0, [0])
    world.clock += 0.1
    assert world.get("a") == 0
    world.renew("a")
    assert (world.get("a"), world.made) == (1, [0, 1])
    world.clock += 1.9
    assert (world.get("a"), world.made) == (1, [0, 1])


def test_what_has_just_been_made_is_not_made_again_however_long_it_took_and_whatever_changed() -> None:
    class Long(World):
        def make(self) -> int:
            self.clock += 1.5
            self.changes += 1
            return super().make()

    world = Long()
    assert world.get("a") == 0
    world.renew("a")
    assert world.made == [0]
    world.clock += 1.0
    world.renew("a")
    assert world.made == [0, 1]


def test_it_is_made_again_at_once_when_something_has_changed() -> None:
    world = World()
    assert world.get("a") == 0
    world.changes += 1
    assert [world.get("a"), world.get("a")] == [1, 1]


class Slow(World):
    """Its value is begun, and made when it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on, self.got = threading.Event(), threading.Event(), list[int]()

    def make(self) -> int:
        made = super().make()
        self.begun.set()
        assert self.go_on.wait(60)
        return made

    def asks(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.got.append(self.get("a")))
        thread.start()
        return thread


def test_who_asks_while_it_is_made_gets_the_same() -> None:
    world = Slow()
    threads = [world.asks()]
    assert world.begun.wait(60)
    threads += [world.asks() for _ in range(3)]
    world.go_on.set()
    for thread in threads:
        thread.join(60)
    assert (world.got, world.made) == ([0] * 4, [0])


def test_who_asks_after_a_change_does_not_get_what_was_begun_before_it() -> None:
    world = Slow()
    threads = [world.asks()]
    assert world.begun.wait(60)
    world.changes += 1
    threads += [world.asks() for _ in range(3)]
    world.go_on.set()
    for thread in threads:
        thread.join(60)
    assert (sorted(world.got), world.made) == ([0, 1, 1, 1], [0, 1])


def test_nobody_waits_while_an_old_one_is_made_again() -> None:
    world = Slow()
    world.go_on.set()
    assert world.get("a") == 0
    world.begun.clear()
    world.go_on.clear()
    world.clock += 1.5
    renewing = threading.Thread(target=world.renew, args=["a"])
    renewing.start()
    assert world.begun.wait(60)
    assert world.get("a") == 0
    world.go_on.set()
    renewing.join(60)
    assert (world.get("a"), world.made) == (1, [0, 1])
