"""What many tabs ask for at once is made once, and not for longer than it may be shown."""

from __future__ import annotations

import threading

from runbook.serve.shared_cache import Recent


def test_it_is_made_again_once_it_is_old_or_its_key_is_another() -> None:
    clock, made = [100.0], list[int]()
    recent = Recent[int](1.0, lambda: clock[0])

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [recent.get("a", make), recent.get("a", make), recent.get("b", make)] == [0, 0, 1]
    clock[0] += 1.0
    assert [recent.get("a", make), recent.get("a", make)] == [2, 2]
    clock[0] += 1.1
    assert [recent.get("c", make), recent.get("a", make)] == [3, 4]


def test_who_asks_while_it_is_made_gets_the_same() -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()
    recent = Recent[int](60.0)

    def slow() -> int:
        begun.set()
        assert go_on.wait(60)
        made.append(1)
        return 7

    got = list[int]()
    first = threading.Thread(target=lambda: got.append(recent.get("a", slow)))
    first.start()
    assert begun.wait(60)
    others = [threading.Thread(target=lambda: got.append(recent.get("a", slow))) for _ in range(3)]
    for other in others:
        other.start()
    go_on.set()
    for thread in (first, *others):
        thread.join(60)
    assert (got, made) == ([7] * 4, [1])
