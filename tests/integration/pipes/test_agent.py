"""``agent pipe``: what comes out of the FIFOs."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import feeding
import pytest
from feeding import agent, split, write_objects

from container.agent.pipes.sharing import WINDOW
from container.contract import pipes
from container.formats import RecordFormat, tfrecord

SHARDED = "ShardedByS3Key"


def test_one_epoch_after_another_as_the_reader_opens_them(tmp_path: Path) -> None:
    records = write_objects(tmp_path / "data", [3, 0, 5])
    with agent(tmp_path / "ml", {"train": {"uri": str(tmp_path / "data")}}) as host:
        for epoch in range(3):
            assert split(RecordFormat.TFRECORD, host.read("train", epoch)) == records
        # A reader that leaves early ends its epoch, and another may be open at the same time.
        with open(host.fifo("train", 3), "rb") as early, open(host.fifo("train", 4), "rb") as later:
            early.read(1)
            early.close()
            assert split(RecordFormat.TFRECORD, later.read()) == records
        host.process.send_signal(signal.SIGTERM)
        assert host.ended()[0] == 0
    assert feeding.left(tmp_path / "ml") == []


def test_it_hears_its_end_at_any_moment(tmp_path: Path) -> None:
    """Also in the one in which it has begun to wait for it; and Ctrl-C in the terminal it was started from."""
    write_objects(tmp_path / "data", [3])
    for attempt in range(8):
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


def test_a_wish_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert pipes.take_asked(tmp_path, "train", 3) == 3
    with pytest.raises(NotADirectoryError):
        pipes.take_asked(tmp_path / "file", "train", 3)


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


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (1, 3)])
def test_sharding_deals_each_record_once(tmp_path: Path, record_format: RecordFormat, hosts: int, ranks: int) -> None:
    """Objects to hosts, then records to ranks; the last line of an object need not end."""
    records = write_objects(tmp_path / "data", [500] * 8 if hosts == 2 else [10, 7, 1, 0, 4, 5, 3], record_format)
    if record_format is RecordFormat.TEXT_LINE:
        last = tmp_path / "data" / "part-02"
        last.write_bytes(last.read_bytes()[:-1])
    channels = {"train": {"uri": str(tmp_path / "data"), "distribution": SHARDED}}
    for epoch_of_all in (0, 1):
        found: list[bytes] = []
        for number in range(hosts):
            with agent(
                tmp_path / f"ml-{number}-{epoch_of_all}", channels, hosts=hosts, number=number, ranks=ranks
            ) as host:
                for local_rank in reversed(range(ranks)):  # no rank waits for another
                    mine = split(record_format, host.read("train", 0, local_rank))
                    if hosts == 2:
                        assert len(mine) == 1000
                    else:
                        assert len(mine) == 10
                    found += mine
        assert sorted(found) == sorted(records)


def test_everything_for_every_rank_of_a_replicated_channel(tmp_path: Path) -> None:
    records = write_objects(tmp_path / "data", [4, 4])
    with agent(tmp_path / "ml", {"train": {"uri": str(tmp_path / "data")}}, ranks=2) as host:
        assert [split(RecordFormat.TFRECORD, host.read("train", 0, rank)) for rank in (1, 0)] == [records] * 2


def test_lines_of_different_objects_are_not_joined(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in (("a", b"1\n2"), ("b", b""), ("c", b"3\n"), ("d", b"4"), ("e", b"5")):
        (folder / name).write_bytes(text)
    for name in "ab":
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    channels = {"plain": {"uri": f"{folder}"}}
    with agent(tmp_path / "ml", channels) as host:
        assert host.read("plain").count(gzip.compress(b"")[:2]) == 2  # gzip's own bytes are not touched
    for name in "ab":
        (folder / f"{name}.gz").unlink()
    with agent(tmp_path / "ml", channels) as host:
        assert host.read("plain") == b"1\n2\n3\n4\n5"


def test_the_order_is_a_function_of_seed_and_epoch(tmp_path: Path) -> None:
    records = write_objects(tmp_path / "data", [1] * 12)
    orders: dict[tuple[int, int], list[bytes]] = {}
    for seed, times in ((1, 2), (2, 1)):
        for time in range(times):
            channels = {"train": {"uri": str(tmp_path / "data"), "shuffle_seed": seed}}
            with agent(tmp_path / f"{seed}-{time}", channels) as host:
                for epoch in range(2):
                    order = split(RecordFormat.TFRECORD, host.read("train", epoch))
                    assert sorted(order) == sorted(records)
                    assert orders.setdefault((seed, epoch), order) == order
    assert len({tuple(order) for order in orders.values()}) == 4


def test_wrapping_and_unpacking(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    contents = [b"a\0picture", b"", os.urandom(3_000_001)]
    for number, content in enumerate(contents):
        (folder / f"{number}").write_bytes(content)
    packed = tmp_path / "packed"
    packed.mkdir()
    for number, content in enumerate(contents):
        (packed / f"{number}.gz").write_bytes(gzip.compress(content[:5], 1) + gzip.compress(content[5:], 1))
    wrapping = {"record_wrapping": "RecordIO"}
    channels = {
        "wrapped": {"uri": str(folder), **wrapping},
        "unpacked": {"uri": str(packed), "compression": "Gzip"},
        "both": {"uri": str(packed), "compression": "Gzip", **wrapping},
        "dealt": {"uri": str(folder), **wrapping, "distribution": SHARDED},
    }
    with agent(tmp_path / "ml", channels, ranks=2) as host:
        assert split(RecordFormat.RECORDIO, host.read("wrapped")) == contents
        assert host.read("unpacked") == b"".join(contents)
        assert split(RecordFormat.RECORDIO, host.read("both")) == contents
        assert split(RecordFormat.RECORDIO, host.read("dealt")) == contents[::2]
        assert split(RecordFormat.RECORDIO, host.read("dealt", 0, 1)) == contents[1::2]


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
        "dealt": {"uri": str(tmp_path / "dealt"), "distribution": SHARDED},
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
    write_objects(tmp_path / "data", [10, 10])
    second = tmp_path / "data" / "part-01"
    good = second.read_bytes()
    sharded = {"uri": str(tmp_path / "data"), "distribution": SHARDED}
    at = 4 * len(tfrecord.encode(b"r10"))
    for name, content, words in (
        ("cut off", good[:-1], f"record 10 at byte {len(good) - len(tfrecord.encode(b'r10'))}: it is cut off"),
        ("damaged", good[:at] + b"x" + good[at + 1 :], f"record 5 at byte {at}: it does not begin as a TFRecord does"),
        ("lines", b"1,2\n", "part-01' is TextLine, but earlier objects are TFRecord"),
        ("picture", b"\x89PNG\0", "its format is not TFRecord, RecordIO or text"),
    ):
        second.write_bytes(content)
        with agent(tmp_path / name, {"train": sharded}, ranks=2) as host:
            host.read("train", 0, 1)
            code, said = host.ended()
        assert code == 1
        assert ("channel 'train'" in said and "part-01" in said and words in said.replace(",", "")) or words in said, (
            said
        )
    for uri, options, words in (
        (tmp_path / "no", {}, "does not exist"),
        (tmp_path / "data", {"compression": "Gzip"}, "every object must be a gzip file"),
    ):
        with agent(tmp_path / "ml", {"train": {"uri": str(uri), **options}}) as host:
            if options:
                host.read()
            code, said = host.ended()
        assert code == 1 and words in said and str(uri) in said


def test_an_object_that_changes_or_vanishes(tmp_path: Path) -> None:
    write_objects(tmp_path / "data", [10, 10])
    second = tmp_path / "data" / "part-01"
    for change, words in (
        (lambda: second.write_bytes(b"other"), "changed"),
        (second.unlink, "cannot be read any more"),
    ):
        with agent(tmp_path / words, {"train": {"uri": str(tmp_path / "data")}}) as host:
            fifo = host.fifo("train", 0)
            change()
            fifo.read_bytes()
            code, said = host.ended()
        assert code == 1 and words in said and "part-01" in said, said


def test_a_wrong_command_line() -> None:
    from container.agent.pipes import serving

    assert serving.main(["--base-dir"]) == 2
    assert serving.main(["--shards", "2"]) == 2
    assert serving.main(["--base-dir", "x"]) == 2


def test_an_augmented_manifest(tmp_path: Path) -> None:
    lines = []
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(b"\x89PNG" + bytes([number]) * number)
        lines.append({"source-ref": f"file://{tmp_path}/{number}.png", "label": number, "more": "not read"})
    manifest = tmp_path / "all.manifest"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    channel = {
        "uri": str(manifest),
        "data_type": "AugmentedManifestFile",
        "attribute_names": ["source-ref", "label"],
        "record_wrapping": "RecordIO",
    }
    channels = {"train": channel, "shuffled": {**channel, "shuffle_seed": 3}}
    with agent(tmp_path / "ml", channels) as host:
        found = split(RecordFormat.RECORDIO, host.read("train"))
        pairs = [(b"\x89PNG" + bytes([number]) * number, b"%d" % number) for number in range(6)]
        assert found == [part for pair in pairs for part in pair]
        orders = [split(RecordFormat.RECORDIO, host.read("shuffled", epoch)) for epoch in range(2)]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(zip(order[::2], order[1::2], strict=True)) == sorted(pairs)


def test_an_augmented_manifest_that_is_wrong_far_down(tmp_path: Path) -> None:
    """The first lines are written before the last are read."""
    good = 20_000
    lines = [*(json.dumps({"label": number, "more": "." * 60}) for number in range(good)), "nonsense"]
    (tmp_path / "manifest").write_text("".join(f"{line}\n" for line in lines))
    channel = {
        "uri": str(tmp_path / "manifest"),
        "data_type": "AugmentedManifestFile",
        "attribute_names": ["label"],
        "record_wrapping": "RecordIO",
    }
    with agent(tmp_path / "ml", {"train": channel}) as host:
        assert split(RecordFormat.RECORDIO, host.read("train")) == [b"%d" % number for number in range(good)]
        code, said = host.ended()
    assert code == 1 and f"line {good + 1}: bad JSON" in said, said


def test_a_manifest_that_is_wrong_far_down(tmp_path: Path) -> None:
    """The first objects are read before the last are looked at. The agent ends all the same, whoever reads."""
    write_objects(tmp_path / "data", [1] * 300)
    names = [f"part-{number:02d}" for number in range(300)]
    text = json.dumps([{"prefix": f"{tmp_path}/data/"}, *names, "part-x"], indent=0)
    (tmp_path / "manifest").write_text(text)
    with agent(tmp_path / "ml", {"train": {"uri": str(tmp_path / "manifest"), "data_type": "ManifestFile"}}) as host:
        code, said = host.ended()
    line = text[: text.index("part-x")].count("\n") + 1
    assert code == 1 and f"line {line}: " in said and "part-x" in said, said
