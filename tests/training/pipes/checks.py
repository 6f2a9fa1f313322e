"""Checks of PipeModeDataset, in one process: TensorFlow takes seconds to import. ``checks.py FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from feeding import Agent, agent, encode, write_objects

from container.contract.pipes import library_file
from container.formats import RecordFormat, tfrecord
from container.pipe_dataset import DamagedRecordError, PipeError, PipeModeDataset, faults, native, places, readers

ROOT = Path(sys.argv[1])
_numbers = iter(range(1000))


def folder() -> Path:
    """A new place for objects; what is not data lies beside it."""
    return ROOT / str(next(_numbers)) / "data"


def dataset(host: Agent, channel: str = "train", record_format: str = "TFRecord", **options: Any) -> PipeModeDataset:
    base = host.base
    return PipeModeDataset(
        channel,
        record_format,
        state_dir=base / "state",
        pipe_dir=host.place(),
        config_dir=base / "input" / "config",
        **options,
    )


def values(found: Any) -> list[bytes]:
    return [value.numpy() for value in found]


def refused(act: Callable[[], Any], *words: str, kind: type[Exception] = PipeError) -> None:
    try:
        act()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


def check_epochs_repeat_and_zip() -> None:
    data = folder()
    records = write_objects(data, [30, 20, 50])
    write_objects(data.parent / "more", [7])
    with agent(
        data.parent / "ml", {"train": {"uri": str(data / "part-00")}, "other": {"uri": str(data.parent / "more")}}
    ) as host:
        found = dataset(host)
        assert isinstance(found, tf.data.Dataset) and found.element_spec == tf.TensorSpec([], tf.string)
        assert values(found) == records[:30]
        assert values(found.repeat(2)) == records[:30] * 2
        assert found.next_epoch() == 3
        pairs = list(tf.data.Dataset.zip((found, dataset(host, "other"))))
        assert [(a.numpy(), b.numpy()) for a, b in pairs] == [(b"r%d" % n, b"r%d" % n) for n in range(7)]
        # Left in the middle; then within a function, as Keras and tf.function read it.
        for number, _ in enumerate(found):
            if number == 3:
                break
        count = tf.function(lambda: found.map(tf.strings.length).reduce(0, lambda total, length: total + length))
        assert int(count()) == sum(map(len, records[:30]))
        assert found.next_epoch() == 6
        assert list(found.take(5).batch(2).as_numpy_iterator())[-1].tolist() == [b"r4"]
    assert not readers._readers and not readers._native, "readers are left"


def check_formats_and_sizes() -> None:
    """Records of all sizes, across the edges of pipes and segments; lines without an end, empty ones, returns."""
    sizes = [0, 1, 199, 1_000_000, 3, 70_000, 9_000_000, 65_536, *[200] * 40_000, 5]
    for record_format in RecordFormat:
        data = folder()
        data.mkdir(parents=True)
        records = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
        if record_format is RecordFormat.TEXT_LINE:
            records += [b"a\r", b"", b"\r", b""]
        if record_format is not RecordFormat.RECORDIO:
            content = b"".join(encode(record_format, record) for record in records)
        else:
            from container.formats import recordio

            content = b"".join(recordio.encode(record, 400_000) for record in records)
        if record_format is RecordFormat.TEXT_LINE:
            records.append(b"no end")
            content += b"no end"
        (data / "all").write_bytes(content)
        with agent(data.parent / "ml", {"train": {"uri": str(data / "all")}}) as host:
            found = dataset(host, record_format=record_format.value)
            assert values(found) == records, record_format


def check_short_reads_and_nothing() -> None:
    """A writer that writes byte by byte; a stream of nothing."""
    data = folder()
    (data / "input" / "config").mkdir(parents=True)
    (data / "input" / "config" / "inputdataconfig.json").write_text(json.dumps({"t": {"TrainingInputMode": "Pipe"}}))
    content = b"".join(tfrecord.encode(b"x" * size) for size in (0, 5, 30))
    for epoch, stream in enumerate((content, b"")):
        fifo = data / f"t_{epoch}"
        os.mkfifo(fifo)

        def write(path: Path = fifo, written: bytes = stream) -> None:
            with open(path, "wb", buffering=0) as file:
                for byte in written:
                    file.write(bytes([byte]))

        threading.Thread(target=write, daemon=True).start()
        found = PipeModeDataset("t", "TFRecord", data / "s", data, data / "input" / "config", benchmark=True)
        assert values(found) == ([b"", b"x" * 5, b"x" * 30] if stream else [])


def check_a_record_comes_though_its_writer_waits() -> None:
    """What there is is handed over, however little: the writer writes a record when the one before was read."""
    data = folder()
    (data / "input" / "config").mkdir(parents=True)
    (data / "input" / "config" / "inputdataconfig.json").write_text(json.dumps({"t": {"TrainingInputMode": "Pipe"}}))
    os.mkfifo(data / "t_0")
    read = threading.Semaphore(1)

    def write() -> None:
        with open(data / "t_0", "wb", buffering=0) as file:
            for number in range(3):
                read.acquire()
                file.write(tfrecord.encode(b"%d" % number))

    threading.Thread(target=write, daemon=True).start()
    found = []
    for value in PipeModeDataset("t", "TFRecord", data / "s", data, data / "input" / "config"):
        found.append(value.numpy())
        read.release()
    assert found == [b"0", b"1", b"2"]


def check_which_reader_it_is() -> None:
    """Provisioning compiled the library; the switch leaves it alone; one that does not fit is said."""
    assert (native.library() is None) == (os.environ.get(native.SWITCH) == "0")
    if native.library() is None:
        return
    other = folder()
    file = library_file(other, native._SOURCE)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no library")
    prefix, sys.prefix = sys.prefix, str(other)
    try:
        refused(native.library.__wrapped__, "does not fit this TensorFlow", "fleetfit install pipe", "=0")
        file.unlink()
        assert native.library.__wrapped__() is None
    finally:
        sys.prefix = prefix


def check_two_damaged_streams_are_told_apart() -> None:
    """TensorFlow says where in its file a record is damaged, and not in which: both have one that begins there."""
    data = folder()
    write_objects(data, [10])
    write_objects(data.parent / "other", [10])
    content = bytearray((data / "part-00").read_bytes())
    content[-6] ^= 1
    (data / "part-00").write_bytes(content)
    with agent(data.parent / "ml", {"train": {"uri": str(data)}, "other": {"uri": str(data.parent / "other")}}) as host:
        both = tf.data.Dataset.zip((dataset(host), dataset(host, "other")))
        refused(lambda: list(both), "corrupted record at", kind=tf.errors.DataLossError)
        size = len(tfrecord.encode(b"r9"))
        error = faults.explain(f"corrupted record at {9 * size + tfrecord.HEADER_SIZE}")
        assert isinstance(error, DamagedRecordError) and f"data/part-00': record 10 at byte {9 * size}" in str(error), (
            error
        )


def check_faults_name_object_offset_and_record() -> None:
    for record_format in (RecordFormat.TFRECORD, RecordFormat.RECORDIO):
        size = len(encode(record_format, b"r10"))
        for name, change, words in (
            ("cut off", lambda c: c[:-1], f"part-01': record 10 at byte {9 * size}: it is cut off"),
            ("cut off before another", lambda c: c[:-1], f"part-01': record 10 at byte {9 * size}: it is cut off"),
            (
                "wrong",
                lambda c, s=size: c[: 3 * s] + b"nonsense" + c[3 * s :],
                f"part-01': record 4 at byte {3 * size}",
            ),
        ):
            data = folder()
            write_objects(data, [10, 10, 10] if "another" in name else [10, 10], record_format)
            second = data / "part-01"
            second.write_bytes(change(second.read_bytes()))
            with agent(data.parent / "ml", {"train": {"uri": str(data), "distribution": "FullyReplicated"}}) as host:
                found = iter(dataset(host, record_format=record_format.value))
                good = 13 if name == "wrong" else 19
                assert [next(found).numpy() for _ in range(good)] == [b"r%d" % n for n in range(good)]
                refused(lambda it=found: next(it), "channel 'train'", words, kind=tf.errors.OpError)


def check_damaged_data_is_found() -> None:
    """TensorFlow finds it; its words become ours where nobody catches them."""
    data = folder()
    write_objects(data, [10, 10])
    size = len(tfrecord.encode(b"r10"))
    second = data / "part-01"
    content = bytearray(second.read_bytes())
    content[4 * size + 13] ^= 1
    second.write_bytes(content)
    seen: list[Any] = []
    with agent(data.parent / "ml", {"train": {"uri": str(data)}}) as host:
        try:
            values(dataset(host))
        except tf.errors.DataLossError as error:
            hook = readers._excepthook_for(lambda *found: seen.append(found))
            hook(type(error), error, error.__traceback__)
        [(kind, error, _)] = seen
        assert kind is DamagedRecordError and f"part-01': record 5 at byte {4 * size}: its data is damaged" in str(
            error
        ), error
        tolerant = dataset(host, max_corrupted_records_to_skip=1)
        assert values(tolerant) == [b"r%d" % n for n in range(20) if n != 14]


def check_the_agents_reason_is_the_readers() -> None:
    data = folder()
    write_objects(data, [10, 10])
    with agent(data.parent / "ml", {"train": {"uri": str(data)}}) as host:
        host.fifo("train", 0)
        (data / "part-01").unlink()
        refused(lambda: values(dataset(host)), "part-01", "cannot be read any more", kind=tf.errors.OpError)
        assert host.ended()[0] == 1


def check_resuming() -> None:
    data = folder()
    records = write_objects(data, [40_000])
    with agent(data.parent / "ml", {"train": {"uri": str(data)}}) as host:
        for record_format, epoch, skip in (("TFRecord", 2, 39_990), ("TFRecord", 4, 5), ("TFRecord", 5, 40_000)):
            found = dataset(host, record_format=record_format)
            found.resume(epoch, skip)
            assert values(found.take(20)) == records[skip:][:20]
            assert found.next_epoch() == epoch + 1


def check_one_fifo_for_several_ranks_is_refused() -> None:
    """As on SageMaker, where the platform makes one for a host, and mpirun or the toolkit says who the ranks are."""
    data = folder()
    write_objects(data, [1])
    with agent(data.parent / "ml", {"train": {"uri": str(data)}}) as host:
        host.fifo("train", 0)
        os.environ["SM_INPUT_DIR"] = str(host.base / "input")
        for rank, size in places._LOCAL:
            os.environ.update({rank: "1", size: "2"})
            refused(
                lambda: values(PipeModeDataset("train", "TFRecord")),
                "2 ranks of this host would read one FIFO",
                "processes_per_host=1",
                kind=tf.errors.OpError,
            )
            del os.environ[rank], os.environ[size]
        assert values(PipeModeDataset("train", "TFRecord")) == [b"r0"]
        del os.environ["SM_INPUT_DIR"]


def check_what_cannot_be() -> None:
    data = folder()
    write_objects(data, [1])
    with agent(data.parent / "ml", {"train": {"uri": str(data)}}) as host:
        refused(lambda: dataset(host, "trian"), "unknown channel 'trian'", "Did you mean 'train'")
        refused(lambda: dataset(host, record_format="TFrecord"), "Did you mean 'TFRecord'", kind=ValueError)
        refused(
            lambda: dataset(host, record_format="TextLine", max_corrupted_records_to_skip=1),
            "TFRecord",
            kind=ValueError,
        )
        config = host.base / "input" / "config" / "inputdataconfig.json"
        config.write_text(json.dumps({"train": {"TrainingInputMode": "File"}}))
        refused(lambda: dataset(host), "is in File mode", "input_mode='Pipe'")
        config.unlink()
        refused(lambda: dataset(host), "does not exist")


for name, check in list(globals().items()):
    if name.startswith("check_") and (len(sys.argv) < 3 or name in sys.argv[2:]):
        check()
        print(name, "ok", flush=True)
