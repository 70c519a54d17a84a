"""Reading: lines, prefixes, clocks, and memory that does not grow."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.diagnose.all_rules import SIGNS, make_scanner
from runbook.diagnose.kept_lines import DEFAULT_SCAN_LIMITS
from runbook.diagnose.literal_index import Index
from runbook.diagnose.log_lines import align_clocks, first_time, read_line, section_speaker, speaker_of_path
from runbook.diagnose.rule_types import Hit

from . import read
from .read import causes_in, first_in

KILLED = b"  exitcode  : -9 (pid: 7)\n"


@pytest.mark.parametrize(
    ("raw", "rank", "node", "text"),
    [
        (b"[rank3]: ValueError: no", 3, None, "ValueError: no"),
        (b"[default0]:ValueError: no", 0, None, "ValueError: no"),
        (b"3: ValueError: no", 3, None, "ValueError: no"),
        (b"[1,12]<stderr>:ValueError: no", 12, None, "ValueError: no"),
        (b"gpu-7: ValueError: no", None, "gpu-7", "ValueError: no"),
        (b"worker-1  | [rank2]: ValueError: no", 2, "worker-1", "ValueError: no"),
        (b"[pod/train-worker-0/pytorch] ValueError: no", None, "train-worker-0", "ValueError: no"),
        (b"(pid=420931) ValueError: no", None, None, "ValueError: no"),
        (b"\x1b[31m[rank3]:\x1b[0m ValueError: no\r", 3, None, "ValueError: no"),
        (b"2026-11-20 22:30:38,937 [rank1]: ValueError: no", 1, None, "ValueError: no"),
        (b"> ValueError: no", None, None, "ValueError: no"),
        (b"**ValueError: no**", None, None, "ValueError: no**"),
        (b"2026-11-20T22:30:38.937123456Z stdout F [rank1]: ValueError: no", 1, None, "ValueError: no"),
        (b"Nov 20 22:30:38 gpu-host train.sh[77]: ValueError: no", None, "gpu-host", "ValueError: no"),
        (b"Nov 20 22:30:38 host sshd[77]: no", None, "host", "sshd[77]: no"),
        (b"(EngineCore_0 pid=7) ERROR 11-20 22:30:38 [core.py:632] ValueError: no", None, None, "ValueError: no"),
        (b"2026-11-20 22:30:38,937 - train - ERROR - ValueError: no", None, None, "ValueError: no"),
        (b"451 node-a:18:24 [0] NCCL WARN no", None, "node-a", "node-a:18:24 [0] NCCL WARN no"),
        (b"python3: can't open file 'x'", None, None, "python3: can't open file 'x'"),
        (b"node-a:18:24 [0] NCCL WARN no", None, "node-a", "node-a:18:24 [0] NCCL WARN no"),
        (b"[E ProcessGroupNCCL.cpp:616] [PG 1 Rank 4] no", 4, None, "[E ProcessGroupNCCL.cpp:616] [PG 1 Rank 4] no"),
    ],
)
def test_who_printed_a_line(raw: bytes, rank: int | None, node: str | None, text: str) -> None:
    line = read_line("x.log", 1, raw)
    assert (line.rank, line.node, line.text) == (rank, node, text)


def hits_at(*texts: str) -> list[Hit]:
    return [Hit("x", read_line("x.log", number, text.encode())) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    "same",
    [
        ("[W1120 21:46:49.452239329 socket.cpp:207] x", "2026-11-20 21:46:49,452 x", "2026-11-20T21:46:49.452Z x",
         "[2026-11-20 21:46:49,452] x", "Nov 20 21:46:49 node x", "2026-11-20T22:46:49.452+01:00 x",
         "2026-11-20 16:16:49.452 -0530 x"),
        ("[W0101 00:00:07.000001 socket.cpp:207] x", "2027-01-01 00:00:07 x", "2026-12-31T23:00:07-01:00 x"),
        ("[W1120 21:46:49.452239329 socket.cpp:207] x", "Nov 20 21:46:49 node x"),
    ],
)  # fmt: skip
def test_clocks_of_one_moment_agree_whatever_their_dialect(same: tuple[str, ...]) -> None:
    first, *others = [hit.line.when for hit in align_clocks(hits_at(*same))]
    assert first is not None
    assert others == [pytest.approx(first, abs=1)] * len(others)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-12-31 23:59:58 x", "2027-01-01 00:00:07 x"),
        ("Dec 31 23:59:58 node x", "Jan  1 00:00:07 node x"),
        ("[E1231 23:59:58.1 a.cpp:1] x", "[E0101 00:00:07.1 a.cpp:1] x"),
        ("2026-12-31 23:59:58 x", "[E0101 00:00:07.1 a.cpp:1] x"),
        ("[E1231 23:59:58.1 a.cpp:1] x", "2027-01-01 00:00:07 x"),
        ("23:59:58 x", "00:00:07 x"),
        ("2026-11-25T13:00:00+01:00 x", "2026-11-25T12:00:07Z x"),
    ],
)
def test_a_clock_goes_on_over_midnight_and_new_year(earlier: str, later: str) -> None:
    for texts in ((earlier, later), (later, earlier)):
        times = {hit.line.text: hit.line.when for hit in align_clocks(hits_at(*texts))}
        order = [hit.line.when for hit in align_clocks(hits_at(*texts))]
        assert None not in order, times
        assert (order[0] < order[1]) is (texts[0] == earlier)  # type: ignore[operator]


def test_a_time_of_day_is_not_compared_with_a_date() -> None:
    dated, of_day = align_clocks(hits_at("2026-11-25 13:00:00 x", "13:00:07 x"))
    assert dated.line.when is not None
    assert of_day.line.when is None
    for odd in ("nothing here", "[E9912 00:00:07.1 a.cpp:1] x", "Foo 45 00:00:07 x", "2026-99-99 00:00:07 x"):
        first_time(odd)


@pytest.mark.parametrize(
    ("heading", "speaker"),
    [("### rank 3", (3, None)), ("==> gpu-node1.log <==", (None, "gpu-node1.log")), ("### gpu-node1: --node_rank=0", (None, "gpu-node1")),
     ("################", None), ("### Results", None)],
)  # fmt: skip
def test_headings_name_who_speaks(heading: str, speaker: tuple[int | None, str | None] | None) -> None:
    assert section_speaker(heading) == speaker


def test_the_names_of_our_own_logs_name_rank_and_node() -> None:
    assert speaker_of_path(".runbook/runs/x/logs/rank-00003.node-b.log") == (3, "node-b")
    assert speaker_of_path("out/rank7.log") == (7, None)
    assert speaker_of_path("slurm-123.out") == (None, None)


@examples(40)
@given(st.binary(max_size=400))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    causes_in(job=data, other=data + KILLED)


@examples(40)
@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 50))
def test_chunks_may_end_anywhere(lines: list[bytes], size: int) -> None:
    data = b"\n".join([*lines, KILLED.strip(), *lines])
    whole, parts = make_scanner(), make_scanner()
    whole.feed("x.log", [data])
    parts.feed("x.log", [data[at : at + size] for at in range(0, len(data), size)])
    assert [(hit.sign, hit.line.number) for hit in whole.hits] == [(hit.sign, hit.line.number) for hit in parts.hits]


def test_a_progress_bar_does_not_hide_what_is_printed_into_it() -> None:
    bar = b"\r".join(b"%d%%|###| %d/99 [00:01<00:02, 1.0it/s]" % (at, at) for at in range(90))
    assert (
        first_in(bar + b"[rank7]:[E x.cpp:1] CUDA error: an illegal memory access was encountered\n")
        == "gpu-illegal-access"
    )
    found = causes_in(job=b"hello\n" + bar + b"\r[rank7]: CUDA error: an illegal memory access was encountered\r\n")
    assert (found[0].rank, found[0].evidence[0].line.number) == (7, 2)


def test_of_many_like_lines_the_first_and_the_last_are_kept() -> None:
    scan = make_scanner()
    scan.feed("x.log", [b"RuntimeError: Connection refused\n" * 10_000])
    numbers = [hit.line.number for hit in scan.hits if hit.sign == "refused"]
    assert numbers[0] == 1
    assert numbers[-1] == 10_000
    assert len(numbers) < 100


def test_memory_does_not_grow_with_the_log() -> None:
    def chunks(times: int) -> Iterator[bytes]:
        for at in range(times):
            block = (
                b"[rank%d]: [W1120 21:52:34.7 socket.cpp:764] failed to connect to 10.0.0.1:%d (errno: 113 - No route to host).\n"
                % (at % 8, at)
            ) * 200
            yield block + b"step %d loss 2.3\n" % at * 200

    def peak(times: int) -> int:
        tracemalloc.start()
        scan = make_scanner()
        scan.feed("x.log", chunks(times))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(400) < 1.3 * peak(100) + 200_000


@examples()
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8, unique=True), st.text("abc ", max_size=30)
)
def test_the_index_finds_exactly_what_is_there(keys: list[str], text: str) -> None:
    found = Index([(key,) for key in keys]).find(text.encode())
    assert found == tuple(at for at, key in enumerate(keys) if key in text)


@pytest.mark.parametrize("around", ["", "x", " ", "7"])
def test_a_line_of_idle_words_hides_no_literal(around: str) -> None:
    scan = make_scanner()
    keys = [key for sign in SIGNS if sign.pattern is None for key in sign.literals]
    scan.feed(
        "x.log",
        [b"nothing to see in these words\n" * 3, *(f"see {around}{key}{around} words\n".encode() for key in keys)],
    )
    assert {hit.sign for hit in scan.hits} >= {sign.name for sign in SIGNS if sign.pattern is None}


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.name)
def test_keys_are_lower_case_without_digits_and_not_too_common(sign) -> None:  # type: ignore[no-untyped-def]
    for key in sign.literals:
        assert key == key.lower()
        assert not any(char.isdigit() for char in key), "a shape has no digits, so a key must have none"
        assert len(key) > 1


def test_among_lines_that_are_all_different_the_last_ones_and_progress_still_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = replace(DEFAULT_SCAN_LIMITS, shapes=200, read=100)
    monkeypatch.setattr(read, "make_scanner", lambda: make_scanner(few))
    letters = "abcdefghij"
    unlike = [f"error: {''.join(letters[int(digit)] for digit in str(at))} failed\n" for at in range(3000)]
    last = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    assert first_in("".join([*unlike, last])) == "gpu-out-of-memory"
    steps = [f"step {at} of {letters[at % 10]}{letters[at // 10 % 10]} loss 1.2\n" for at in range(100)]
    assert causes_in(job="".join([*unlike, *steps])) == []


def test_of_many_logs_without_a_like_line_the_last_line_of_each_and_known_ones_still_count() -> None:
    few = replace(DEFAULT_SCAN_LIMITS, unlike_read=60, least_until=100)
    scanner = make_scanner(few)
    unlike = [f"error: {''.join('abcdefghij'[int(digit)] for digit in str(at))} failed\n" for at in range(3000)]
    scanner.feed("rank0.log", [b"torch.distributed.elastic: node-a has died\n", KILLED])
    for rank in range(1, 300):
        scanner.feed(f"rank{rank}.log", ["".join(unlike[rank * 10 : rank * 10 + 10]).encode()])
    read_at_first = len([hit for hit in scanner.hits if hit.line.source == "rank1.log"])
    read_at_last = len([hit for hit in scanner.hits if hit.line.source == "rank299.log"])
    assert read_at_first > 2 * read_at_last > 0
    assert "".join(scanner.unread("rank299.log")), "what was not searched is said"
    out_of_memory = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB{'.' * 400}\n"
    scanner.feed("rank300.log", ["".join([*unlike[:9], out_of_memory]).encode()])
    scanner.feed("rank301.log", ["".join(["error: zz failed\n", KILLED.decode(), *unlike[9:12]]).encode()])
    found = {(hit.line.source, hit.line.text) for hit in scanner.hits}
    assert ("rank300.log", out_of_memory.strip()) in found
    assert ("rank301.log", KILLED.decode().strip()) in {(source, text.strip()) for source, text in found}


def test_of_very_many_logs_without_a_like_line_known_ones_still_count_and_what_was_not_searched_is_said() -> None:
    few = replace(DEFAULT_SCAN_LIMITS, unlike_read=60, least_until=100, last_until=120)
    scanner = make_scanner(few)
    unlike = [f"error: {''.join('abcdefghij'[int(digit)] for digit in str(at))} failed\n" for at in range(3000)]
    scanner.feed("rank0.log", [b"torch.distributed.elastic: node-a has died\n", KILLED])
    for rank in range(1, 300):
        scanner.feed(f"rank{rank}.log", ["".join(unlike[rank * 10 : rank * 10 + 10]).encode()])
    scanner.feed("rank300.log", ["".join(["error: zz failed\n", KILLED.decode(), *unlike[:3]]).encode()])
    read = {hit.line.source: hit.line.text for hit in scanner.hits}
    assert "rank299.log" not in read
    assert "".join(scanner.unread("rank299.log")), "what was not searched is said"
    assert read["rank300.log"].strip() == KILLED.decode().strip()
