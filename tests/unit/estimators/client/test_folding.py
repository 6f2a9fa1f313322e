"""What of the logs is shown: TensorFlow's start-up lines left out, equal lines of several ranks once."""

from __future__ import annotations

import io
import random

import pytest

from estimators.client.folding import STARTUP_NOTE, WINDOW, Folding
from estimators.client.printing import LogPrinter
from estimators.records.logs import LogLine

MS = 1_000_000

#: As TensorFlow 2.21 and 2.15 print it when it is imported, and when its servers meet.
STARTUP = rb"""
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795398429.323005   16629 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795398429.966271   16629 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available
To enable the following instructions: AVX2 FMA, rebuild TensorFlow with the appropriate compiler flags.
I0000 00:00:1795398429.323005   16629 cudart_stub.cc:31] Could not find cuda drivers on your machine
E0000 00:00:1795398429.323005   16629 cuda_fft.cc:485] Unable to register cuFFT factory: Attempting to register factory
W0000 00:00:1795398429.323005   16629 computation_placer.cc:177] computation placer already registered. Please check
E0000 00:00:1795398429.323005   16629 cuda_platform.cc:51] failed call to cuInit: UNKNOWN ERROR (303)
2026-11-23 01:47:09.323005: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on. You may see
2026-11-23 01:47:09.323005: E xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory
2026-11-23 01:47:09.323005: W tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
I0000 00:00:1795398987.014803   30538 grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:27892
I0000 00:00:1795398987.971712   30859 coordination_service.h:529] /job:worker/replica:0/task:1 has connected to it
I0000 00:00:1795398987.220240   30859 coordination_service.cc:502] Waiting for 1/2 tasks to connect.
I0000 00:00:1795398987.220248   30859 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
""".strip().splitlines(keepends=True)

#: What looks like it and is somebody's own, or may be what is wrong.
TELLING = [
    b"I0000 00:00:1795398987.014803   30538 my_op.cc:12] loaded\n",
    b"W0000 00:00:1795398429.323005   16629 gpu_device.cc:2342] Cannot dlopen some GPU libraries.\n",
    b"E0000 00:00:1795398429.323005   16629 cuda_platform.cc:51] failed call to cuInit: CUDA_ERROR_NO_DEVICE (100)\n",
    b"/job:worker/replica:0/task:1 is what I am\n",
    b"oneDNN custom operations are on, says my script\n",
]


def of(rank: int, data: bytes, time_ns: int = 0) -> LogLine:
    return LogLine(time_ns, f"algo-{rank + 1}", f"rank {rank}", 0, data)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(folding: Folding, *batches: list[LogLine]) -> list[tuple[str | None, str, int]]:
    items = [item for batch in batches for item in folding.take(batch)]
    items += folding.rest()
    return [(item.line.process, item.line.data.decode().rstrip("\n"), item.times) for item in items]


@pytest.mark.parametrize("line", STARTUP, ids=range(len(STARTUP)))
def test_each_line_of_the_start_up_is_known(line: bytes) -> None:
    assert shown(Folding(several=False), [of(0, line)]) == [("rank 0", STARTUP_NOTE.decode().rstrip("\n"), 1)]


@pytest.mark.parametrize("line", TELLING, ids=range(len(TELLING)))
def test_what_may_matter_stays(line: bytes) -> None:
    assert shown(Folding(several=False), [of(0, line)]) == [("rank 0", line.decode().rstrip("\n"), 1)]


def test_the_start_up_of_all_ranks_is_one_note() -> None:
    batch = [of(rank, line) for line in STARTUP for rank in (0, 1)]
    said = shown(Folding(), batch, [of(0, b"Epoch 1/2\n")])
    assert [text for _, text, _ in said] == [STARTUP_NOTE.decode().rstrip("\n"), "Epoch 1/2"]


@pytest.mark.parametrize(
    ("ranks", "times"),
    [
        pytest.param([0, 1, 2, 3], [4], id="each rank once"),
        pytest.param([0, 0, 1, 1], [2, 2], id="the same rank twice"),
        pytest.param([2, 0, 1], [3], id="the lowest rank stands for all"),
    ],
)
def test_equal_lines_of_several_ranks_are_one(ranks: list[int], times: list[int]) -> None:
    batch = [of(rank, b"Epoch 1/2\n", number * MS) for number, rank in enumerate(ranks)]
    assert shown(Folding(), batch) == [("rank 0", "Epoch 1/2", count) for count in times]


TRACEBACK = [
    b"Traceback (most recent call last):\n",
    b'  File "train.py", line 1, in <module>\n',
    b"    fail()\n",
    b"ValueError: no data\n",
]
BARE = [b"\n", b"}\n", b"-----\n"]
INPUT = b"W0000 00:00:%d.1   %d dataset.cc:997] Input will not be optimized\n"


@pytest.mark.parametrize(
    ("batch", "times"),
    [
        pytest.param([of(rank, INPUT % (rank, rank)) for rank in (0, 1)], [2], id="other time and thread"),
        pytest.param([of(0, b"loss 1\n"), of(1, b"loss 1\n", int(WINDOW * 1e9) + MS)], [1, 1], id="too far apart"),
        pytest.param([of(rank, line) for line in TRACEBACK for rank in (0, 1)], [1] * 8, id="tracebacks"),
        pytest.param([of(rank, line) for line in BARE for rank in (0, 1)], [1] * 6, id="without words"),
        pytest.param([LogLine(0, f"algo-{n}", "ps", 0, b"serving\n") for n in (1, 2)], [1, 1], id="not of ranks"),
    ],
)
def test_how_many_lines_are_one(batch: list[LogLine], times: list[int]) -> None:
    assert [count for _, _, count in shown(Folding(), batch)] == times


def test_a_line_waits_for_the_window_and_no_longer() -> None:
    clock = Clock()
    folding = Folding(clock=clock)
    assert list(folding.take([of(0, b"loss 1\n")])) == []
    assert folding.due == pytest.approx(WINDOW)
    clock.now += WINDOW
    assert folding.due == 0
    assert [item.line.data for item in folding.take([])] == [b"loss 1\n"]
    assert folding.due is None


def test_a_single_rank_never_waits() -> None:
    folding = Folding(several=False)
    assert len(list(folding.take([of(0, b"loss 1\n")]))) == 1
    assert folding.due is None


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_lost_and_each_rank_keeps_its_order(seed: int) -> None:
    """Whatever the ranks print, and in whichever portions it is read."""
    dice = random.Random(seed)
    ranks = dice.randint(2, 5)
    lines, time_ns = [], 0
    for _ in range(300):
        time_ns += dice.choice([0, MS, 30 * MS, 250 * MS])
        text = dice.choice([b"a", b"b", b"c", b"", b"Traceback (most recent call last):", b"  x", b"E: 1"])
        lines.append(of(dice.randrange(ranks), text + dice.choice([b"\n", b"\n", b"\r", b""]), time_ns))
    clock = Clock()
    folding = Folding(clock=clock)
    items, waiting = [], list(lines)
    while waiting:
        count = dice.randint(1, 9)
        items += folding.take(waiting[:count])
        del waiting[:count]
        clock.now += dice.choice([0, WINDOW / 2, WINDOW])
    items += folding.rest()
    assert sum(item.times for item in items) == len(lines)
    # A rank's lines, in its order, are found in what is shown, each in one of its own or of another rank's like it.
    for rank in range(ranks):
        own = [line for line in lines if line.rank == rank]
        places = iter(items)
        for line in own:
            assert any(item.line is line or (item.times > 1 and item.line.data == line.data) for item in places), line


def test_the_prefix_says_how_many() -> None:
    stream = io.StringIO()
    printer = LogPrinter(stream, folding=Folding())
    printer.print([of(0, b"Epoch 1/2\n"), of(1, b"Epoch 1/2\n"), of(1, b"loss 1\n")])
    printer.finish()
    assert stream.getvalue() == "[algo-1:rank 0 ×2] Epoch 1/2\n[algo-2:rank 1] loss 1\n"


def test_without_the_character_it_is_a_letter() -> None:
    raw = io.BytesIO()
    printer = LogPrinter(io.TextIOWrapper(raw, encoding="ascii"), colour=True, folding=Folding())
    printer.print([of(0, b"a\n"), of(1, b"a\n")])
    printer.finish()
    assert raw.getvalue() == b"\x1b[36m[algo-1:rank 0 x2]\x1b[0m a\n"


def test_a_message_of_ours_comes_after_what_was_held() -> None:
    stream = io.StringIO()
    printer = LogPrinter(stream, folding=Folding())
    printer.print([of(0, b"a\n")])
    assert stream.getvalue() == ""
    printer.message("stopping")
    assert stream.getvalue() == "[algo-1:rank 0] a\nstopping\n"
