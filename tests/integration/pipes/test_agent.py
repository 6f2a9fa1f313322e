"""``agent pipe``: what comes out of the FIFOs."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import feeding
import pytest
from feeding import agent, split, write_objects

from container.agent.pipes.sharing import WINDOW
from container.contract import pipes
from container.formats import RecordFormat, tfrecord

SHARDED = {"distribution": "ShardedByS3Key"}


@pytest.mark.landing
def test_one_epoch_after_another_as_the_readers_open_them(tmp_path: Path) -> None:
    records = write_objects(tmp_path / "data", [3, 0, 5])
    channels = {"train": {"uri": str(tmp_path / "data")}, "dealt": {"uri": str(tmp_path / "data"), **SHARDED}}
    with agent(tmp_path / "ml", channels, ranks=2) as host:
        for epoch in range(2):
            for rank in (1, 0):  # no rank waits for another
                assert split(RecordFormat.TFRECORD, host.read("train", epoch, rank)) == records, (epoch, rank)
            shares = [split(RecordFormat.TFRECORD, host.read("dealt", epoch, rank)) for rank in (1, 0)]
            assert shares == [records[1::2], records[::2]], epoch
        # A reader that leaves early ends its epoch, and another may be open at the same time.
        with open(host.fifo("train", 2), "rb") as early, open(host.fifo("train", 3), "rb") as later:
            early.read(1)
            early.close()
            assert split(RecordFormat.TFRECORD, later.read()) == records
        host.process.send_signal(signal.SIGTERM)
        assert host.ended()[0] == 0
    assert feeding.left(tmp_path / "ml") == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reader_may_ask_for_an_epoch_again(tmp_path: Path, ranks: int) -> None:
    write_objects(tmp_path / "data", [1] * 20)
    channels = {"train": {"uri": str(tmp_path / "data"), "shuffle_seed": 3}}
    with agent(tmp_path / "ml", channels, ranks=ranks) as host:
        state = pipes.state_folder(tmp_path / "ml", 0 if ranks > 1 else None)
        read = []
        for number, epoch in enumerate([1, 1, None, 0, 1]):
            if epoch is not None:
                pipes.ask(state, "train", number, epoch)
            fifo = host.fifo("train", number)
            assert pipes.newest(fifo.parent, "train") == number
            read.append(fifo.read_bytes())
        one, again, of_its_number, zero, last = read
        assert one == again == last
        assert len({one, of_its_number, zero}) == 3
        assert list(state.iterdir()) == []


def test_it_hears_its_end_at_any_moment(tmp_path: Path) -> None:
    """Also in the one in which it has begun to wait for it; and Ctrl-C in the terminal it was started from."""
    write_objects(tmp_path / "data", [3])
    for attempt in range(4):
        number = (signal.SIGTERM, signal.SIGINT)[attempt % 2]
        with agent(tmp_path / str(attempt), {"train": {"uri": str(tmp_path / "data")}}) as host:
            host.fifo("train", 0)
            host.process.send_signal(number)
            assert host.ended() == (0, "")


def test_it_ends_when_nobody_can_be_told_why(tmp_path: Path) -> None:
    channels = tmp_path / "channels.json"
    channels.write_text(json.dumps({"train": {"uri": str(tmp_path / "none"), "mode": "Pipe"}}))
    words = ["agent", "pipe", "--base-dir", str(tmp_path / "ml"), "--channels", str(channels), "--host", "algo-1"]
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        command = ["sh", "-c", f'exec "$0" -I "$@" {closed}', sys.executable, str(feeding.ROOT / "container"), *words]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == 1, closed


def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    """Of a file as it is, of one that is unpacked, and of what two ranks share, of which one begins last."""
    size = 300 << 20
    for name in ("plain", "packed", "dealt"):
        (tmp_path / name).mkdir()
    with open(tmp_path / "plain" / "object", "wb") as file:
        file.truncate(size)
    (tmp_path / "packed" / "object.gz").write_bytes(gzip.compress(bytes(1 << 20), 1) * 300)
    part = tmp_path / "part"
    part.write_bytes(tfrecord.encode(bytes((1 << 20) - 16)))
    for number in range(300):
        os.link(part, tmp_path / "dealt" / f"{number:03d}")
    channels = {
        "plain": {"uri": str(tmp_path / "plain")},
        "packed": {"uri": str(tmp_path / "packed"), "compression": "Gzip"},
        "dealt": {"uri": str(tmp_path / "dealt"), **SHARDED},
    }
    with agent(tmp_path / "ml", channels, ranks=2) as host:
        for channel in channels:
            host.fifo(channel, 0, 1)
        before = _peak_memory(host)
        for channel, expected in (("plain", 2 * size), ("packed", 2 * size), ("dealt", size)):
            with contextlib.ExitStack() as stack:
                fifos = [open(host.fifo(channel, 0, rank), "rb", buffering=0) for rank in range(2)]  # noqa: SIM115
                for fifo in fifos:
                    stack.enter_context(fifo)
                buffer = bytearray(1 << 20)
                assert sum(sum(iter(lambda: fifo.readinto(buffer), 0)) for fifo in fifos) == expected  # noqa: B023
        # Each channel that ranks share keeps so much for the one that is behind.
        assert _peak_memory(host) - before < 2 * WINDOW + (64 << 20) < size


def _peak_memory(host: feeding.Agent) -> int:
    """The agent's largest resident memory so far, in bytes."""
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) << 10


def test_what_cannot_be_read_ends_the_agent_with_the_reason(tmp_path: Path) -> None:
    """An object that vanishes, and lists that are wrong far down, whose first objects are read before that is seen."""
    write_objects(tmp_path / "data", [1] * 300)
    data, gone, listed, labels = (tmp_path / name for name in ("data", "gone", "manifest", "labels"))
    write_objects(gone, [10, 10])
    names = [f"part-{number:02d}" for number in range(300)]
    text = json.dumps([{"prefix": f"{data}/"}, *names, "part-x"], indent=0)
    listed.write_text(text)
    line = text[: text.index("part-x")].count("\n") + 1
    good = 20_000
    lines = [*(json.dumps({"label": number, "more": "." * 60}) for number in range(good)), "nonsense"]
    labels.write_text("".join(f"{line}\n" for line in lines))
    augmented = {"data_type": "AugmentedManifestFile", "attribute_names": ["label"], "record_wrapping": "RecordIO"}
    with agent(tmp_path / "one", {"train": {"uri": str(gone)}}) as host:
        fifo = host.fifo("train", 0)
        (gone / "part-01").unlink()
        fifo.read_bytes()
        code, said = host.ended()
    assert code == 1 and "cannot be read any more" in said and "part-01" in said, said
    with agent(tmp_path / "two", {"train": {"uri": str(listed), "data_type": "ManifestFile"}}) as host:
        code, said = host.ended()  # whoever reads
    assert code == 1 and "part-x" in said and f"line {line}: " in said, said
    with agent(tmp_path / "three", {"train": {"uri": str(labels), **augmented}}) as host:
        assert split(RecordFormat.RECORDIO, host.read("train")) == [b"%d" % number for number in range(good)]
        code, said = host.ended()
    assert code == 1 and f"line {good + 1}: bad JSON" in said, said


def test_ranks_of_a_host_share_what_the_agent_reads(tmp_path: Path) -> None:
    """Three ranks read at once, more than their FIFOs hold; the agent's reading is counted by the kernel."""
    records = write_objects(tmp_path / "data", [150_000, 150_000], RecordFormat.TEXT_LINE)
    size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    got, counted = read_by_three(tmp_path / "ml", {"uri": str(tmp_path / "data"), **SHARDED})
    shares = [split(RecordFormat.TEXT_LINE, got[rank]) for rank in range(3)]
    assert [len(share) for share in shares] == [100_000] * 3
    assert sorted(record for share in shares for record in share) == sorted(records)
    assert size <= counted < 1.5 * size, "not once for each of them"


def test_ranks_of_a_host_share_objects_that_are_wrapped(tmp_path: Path) -> None:
    """Each object is a record: all ranks have all of them, or each has its own."""
    data = tmp_path / "data"
    data.mkdir()
    records = [os.urandom(2 << 20) for _ in range(3)]
    for number, record in enumerate(records):
        (data / f"part-{number}").write_bytes(gzip.compress(record, 1))
    size = sum(path.stat().st_size for path in data.iterdir())
    channel = {"uri": str(data), "compression": "Gzip", "record_wrapping": "RecordIO"}
    got, counted = read_by_three(tmp_path / "all", channel)
    assert all(split(RecordFormat.RECORDIO, stream) == records for stream in got.values())
    assert size <= counted < 1.5 * size, "not once for each of them"
    got, _ = read_by_three(tmp_path / "own", {**channel, **SHARDED})
    assert [split(RecordFormat.RECORDIO, got[rank]) for rank in range(3)] == [[record] for record in records]


def read_by_three(folder: Path, channel: dict[str, Any]) -> tuple[dict[int, bytes], int]:
    """What each of three ranks reads of a channel at once, and how many bytes the agent has read for that."""
    with agent(folder, {"train": channel}, ranks=3) as host:
        for rank in range(3):
            host.fifo("train", 0, rank)  # it has begun
        before = read_bytes(host.process.pid)
        got: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=lambda rank=rank: got.update({rank: host.read("train", 0, rank)}))
            for rank in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return got, read_bytes(host.process.pid) - before


def read_bytes(pid: int) -> int:
    """Bytes that a process has read by read() and the like, from /proc."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
