"""The Checkpointer on arrays: what users call, and clusters."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from container import distributed
from container.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointLockedError,
    CheckpointMismatchError,
    CheckpointWriteError,
    NoUsableCheckpointError,
    Progress,
    SingleProcess,
    sharing,
)
from container.checkpoint import checkpointer as checkpointers
from container.checkpoint.state import KerasState, compare, state_of
from container.contract import variables


class Cluster:
    """Ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._shared: list[Any] = [None]
        self._size = size
        self.calls = 0

    def rank(self, number: int) -> Any:
        cluster = self

        class Rank:
            rank = number
            size = cluster._size

            def broadcast_object(self, value: Any) -> Any:
                if number == 0:
                    cluster._shared[0] = value
                    cluster.calls += 1
                self.barrier()
                found = cluster._shared[0]
                self.barrier()
                return found

            def barrier(self) -> None:
                cluster._barrier.wait(20)

        return Rank()


def on_all(size: int, function: Any) -> list[Any]:
    """Call a function on each rank, in threads; returns what each returns or raises."""
    cluster = Cluster(size)
    results: list[Any] = [None] * size

    def run(number: int) -> None:
        try:
            results[number] = function(cluster.rank(number))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def arrays(value: float) -> dict[str, Any]:
    return {"w": np.full((3, 4), value, np.float32), "n": np.array(int(value)), "count": int(value)}


def test_round_trip_fills_in_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(arrays(0)) is None
        checkpointer.save(
            arrays(5), epoch=2, step=57, batch=7, position={"shard": [1, 2]}, metrics={"loss": 0.5}, metadata="mine"
        )
    target = arrays(0)
    same = target["w"]
    with Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore(target)
        assert restored is not None
        assert restored.progress == Progress(epoch=2, step=57, batch=7, position={"shard": [1, 2]})
        assert (restored.epoch, restored.step, restored.metadata, restored.size) == (2, 57, "mine", 1)
        assert restored.metrics == {"loss": 0.5} and restored.skipped == () and restored.arrays == {}
        assert checkpointer.progress == restored.progress
    assert target["w"] is same and (same == 5).all() and target["n"] == 5 and target["count"] == 5
    assert "restored checkpoint-00000001-step-57: epoch 2, batch 7, step 57" in capfd.readouterr().err


def test_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SM_CHECKPOINT_DIR", raising=False)
    assert Checkpointer().directory == "/opt/ml/checkpoints"
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / "here"))
    assert Checkpointer().directory == str(tmp_path / "here")
    assert Checkpointer("~/x").directory == os.path.expanduser("~/x")
    assert not (tmp_path / "here").exists()  # until it is used


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    for wrong in ({"keep": 0}, {"keep": True}, {"every": "sometimes"}, {"best": "f1"}, {"pending": 0}, {"budget": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Checkpointer(tmp_path, **wrong)
    with pytest.raises(ValueError, match="Did you mean 'current'"):
        Checkpointer(tmp_path, learning_rate="curent")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"lock_timeout": "x"}, TypeError),
        ({"lock_timeout": None}, TypeError),
        ({"lock_timeout": True}, TypeError),
        ({"lock_timeout": -1}, ValueError),
        ({"lock_timeout": float("nan")}, ValueError),
        ({"asynchronous": "no"}, TypeError),
        ({"read_only": 1}, TypeError),
        ({"pending": "2"}, ValueError),
        ({"budget": "x"}, ValueError),
    ],
)
def test_arguments_of_another_type(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{next(iter(wrong))} must "):
        Checkpointer(tmp_path, **wrong)


def test_all_that_holds_the_training_up_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the variables as well as copying them; and the writer's own processor time."""
    took = 0.0

    class State:
        facts: Mapping[str, Any] = MappingProxyType({})

        def groups(self) -> Any:
            nonlocal took
            took = 100.0
            return state_of({"a": np.ones(100_000)}).groups()

    known: dict[str, float] = {}
    monkeypatch.setattr(checkpointers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + took))
    with Checkpointer(tmp_path) as checkpointer:
        monkeypatch.setattr(checkpointer.schedule, "saved", lambda step, **costs: known.update(costs))
        monkeypatch.setattr(checkpointer.schedule, "written", lambda **costs: known.update(costs))
        checkpointer.save(State(), step=1)
    assert known["blocked_s"] >= 100 and known["processor_s"] > 0


def test_what_cannot_be_saved_is_said_at_once(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match="metadata must be a value that JSON can represent"):
            checkpointer.save(arrays(1), metadata={"x": object()})
        with pytest.raises(TypeError, match="position"):
            checkpointer.save(arrays(1), position=b"bytes")
        with pytest.raises(ValueError, match="step must be a whole number"):
            checkpointer.save(arrays(1), step=-1)
        with pytest.raises(CheckpointError, match="words: arrays of type str"):
            checkpointer.save({"words": np.array(["a"])})
        with pytest.raises(TypeError, match="a list cannot be saved"):
            checkpointer.save([1])
        checkpointer.save(arrays(1), step=1)
    assert checkpointer.checkpoints() == ["checkpoint-00000001-step-1"]
    with pytest.raises(ValueError, match="closed"):
        checkpointer.save(arrays(1), step=2)
    assert checkpointer.restore() is not None
    with Checkpointer(tmp_path, lock_timeout=0) as another:  # neither has taken the folder back
        another.save(arrays(2), step=2)


def test_metrics_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays(1), metrics={"a": np.float32(0.5), "b": [1, 2], "c": None})  # type: ignore[dict-item]
        restored = checkpointer.restore()
    assert restored is not None and restored.metrics == {"a": 0.5}


def test_another_model_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"a": np.ones(3), "b": np.ones(4)}, step=1)
        target: dict[str, Any] = {"a": np.zeros(3), "b": np.zeros(5)}
        with pytest.raises(
            CheckpointMismatchError, match=r"it has b \[4\] float64 instead of b \[5\] float64"
        ) as caught:
            checkpointer.restore(target)
        assert str(tmp_path / "checkpoint-00000001-step-1") in str(caught.value)
        assert "another folder: Checkpointer(directory=…)" in str(caught.value)
        assert (target["a"] == 0).all()
        with pytest.raises(CheckpointMismatchError, match="lacks c and also has b"):
            checkpointer.restore({"a": np.zeros(3), "c": np.zeros(4)})
        with pytest.raises(CheckpointMismatchError, match="float32"):
            checkpointer.restore({"a": np.zeros(3, np.float32), "b": np.zeros(4)})


def test_best_and_labels(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=1, best="val_loss") as checkpointer:
        assert checkpointer.restore(which="best") is None
        for step, loss in enumerate([3, 1, 2], 1):
            checkpointer.save(arrays(step), step=step, metrics={"val_loss": loss})
            if step == 1:
                checkpointer.pin("first")
        checkpointer.wait()
        assert [name[-1] for name in checkpointer.checkpoints()] == ["1", "2", "3"]
        found = [checkpointer.restore(which=which) for which in ("newest", "best", "first")]
        assert [restored.step for restored in found if restored] == [3, 2, 1]
        checkpointer.unpin("first")
        with pytest.raises(FileNotFoundError):
            checkpointer.restore(which="first")
    with pytest.raises(ValueError, match="Checkpointer\\(best="):
        Checkpointer(tmp_path).restore(which="best")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .* 'val_acc'; metrics of the checkpoints: val_loss"):
        Checkpointer(tmp_path, best="val_acc", read_only=True).restore(which="best")


def test_an_epoch_without_the_metric_of_the_best_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Checkpointer(tmp_path, best="val_acc") as checkpointer:
        callback = checkpointer.callback()
        callback.set_model(arrays(1))
        for epoch in (0, 2):
            callback.on_epoch_end(epoch, {"loss": 1.0, "val_accuracy": 0.5})
    said = "epoch 1 has no metric 'val_acc', so no checkpoint of this epoch can be the best"
    assert capfd.readouterr().err == f"checkpoints: {said}. Its metrics are: loss, val_accuracy\n"


def test_arrays_in_the_other_byte_order(tmp_path: Path) -> None:
    target = {"a": np.zeros(3, ">f4")}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"a": np.arange(3, dtype=">f4")}, wait=True)
        checkpointer.restore(target)
    assert target["a"].tolist() == [0, 1, 2]


def test_numbers_of_numpy_are_whole_numbers(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays(1), epoch=np.int32(1), step=np.int64(7), wait=True)
        assert checkpointer.progress == Progress(epoch=1, step=7)
        for wrong in (np.float64(1), True, -1, "1", np.arange(2)):
            with pytest.raises(ValueError, match="step must be a whole number"):
                checkpointer.save(arrays(1), step=wrong)


def test_a_reader_beside_a_writer(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays(1), step=1, wait=True)
        with pytest.raises(CheckpointLockedError):
            Checkpointer(tmp_path, lock_timeout=0).restore()
        reader = Checkpointer(tmp_path, read_only=True)
        restored = reader.restore()
        assert restored is not None and restored.step == 1
        with pytest.raises(CheckpointError, match="read_only"):
            reader.save(arrays(1))


def test_a_damaged_one_is_said_and_skipped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(arrays(step), step=step)
    path = tmp_path / "checkpoint-00000002-step-2" / "arrays.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    with Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore()
    assert restored is not None and restored.step == 1
    assert [(skip.name, skip.file) for skip in restored.skipped] == [(path.parent.name, path.name)]
    err = capfd.readouterr().err
    assert "skipped checkpoint-00000002-step-2/arrays.safetensors: its content has changed" in err


def test_a_checkpoint_is_readable_without_us(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, step=1)
    content = (tmp_path / "checkpoint-00000001-step-1" / "arrays.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header == {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    assert np.frombuffer(content[8 + length :], np.float32).tolist() == [0, 1, 2, 3, 4, 5]


# --- clusters ---


def test_rank_0_alone_writes_and_all_restore_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_BROADCAST_PIECE", 1000)
    folders = [tmp_path / str(rank) for rank in range(3)]  # as on hosts that share no disk

    def save(cluster: Any) -> None:
        with Checkpointer(folders[cluster.rank], cluster=cluster) as checkpointer:
            assert checkpointer.restore(arrays(9)) is None
            checkpointer.save({"w": np.full(5001, 7.0 + cluster.rank)}, epoch=1, step=10, metadata=cluster.rank)

    assert on_all(3, save) == [None] * 3
    assert folders[0].exists() and not folders[1].exists() and not folders[2].exists()

    def restore(cluster: Any) -> Any:
        target = {"w": np.full(5001, float(cluster.rank))}
        with Checkpointer(folders[cluster.rank], cluster=cluster) as checkpointer:
            restored = checkpointer.restore(target)
            assert restored is not None and checkpointer.has_restored
            return (target["w"] == 7.0).all(), restored.progress, restored.metadata, restored.size

    assert on_all(3, restore) == [(True, Progress(epoch=1, step=10), 0, 3)] * 3
    assert not folders[1].exists()


def test_the_cluster_of_init_is_taken_unless_another_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    ranks, mine = Cluster(1), Cluster(1)
    checkpointer = Checkpointer(tmp_path)  # may be made before
    monkeypatch.setattr(distributed, "_cluster", rank := ranks.rank(0))
    assert checkpointer.cluster is rank
    checkpointer.cluster = other = mine.rank(0)  # cluster.callbacks(checkpointer=…)
    assert checkpointer.cluster is other
    assert Checkpointer(tmp_path, cluster=other).cluster is other
    second = Cluster(2).rank(1)
    monkeypatch.setattr(distributed, "_cluster", second)
    Checkpointer(tmp_path).save(arrays(1), step=1)
    assert not os.listdir(tmp_path)


def _tf_config(*workers: str) -> str:
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}})


@pytest.mark.parametrize(
    ("name", "alone", "several"),
    [
        ("OMPI_COMM_WORLD_SIZE", "1", "2"),
        ("HOROVOD_SIZE", "1", "2"),
        ("PMI_SIZE", "1", "2"),
        ("TF_CONFIG", _tf_config("a:1"), _tf_config("a:1", "b:1")),
    ],
)
def test_one_of_several_ranks_without_a_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, alone: str, several: str
) -> None:
    monkeypatch.setattr(distributed, "_cluster", None)
    monkeypatch.setenv(name, several)
    for call in (Checkpointer.save, Checkpointer.restore):
        with pytest.raises(CheckpointError, match=r"one of 2 ranks.*distributed\.init\(\).*SingleProcess\(\)"):
            call(Checkpointer(tmp_path), arrays(1))
    with pytest.raises(CheckpointError, match="one of 2 ranks"):
        Checkpointer(tmp_path).callback().on_train_begin()
    assert not os.listdir(tmp_path)
    # As scripts do that save on rank 0 by hand.
    with Checkpointer(tmp_path, cluster=SingleProcess()) as checkpointer:
        checkpointer.save(arrays(1), step=1)
    monkeypatch.setenv(name, alone)
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None and restored.step == 1
    monkeypatch.setenv(name, "x")
    with pytest.raises(CheckpointError, match="not clear which ranks"):
        Checkpointer(tmp_path).restore()


def test_all_ranks_learn_what_went_wrong_on_rank_0(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays(1), step=1)
    os.truncate(tmp_path / "checkpoint-00000001-step-1" / "arrays.safetensors", 3)
    found = on_all(2, lambda cluster: Checkpointer(tmp_path, cluster=cluster).restore())
    assert [type(error) for error in found] == [NoUsableCheckpointError] * 2
    (tmp_path / "file").write_text("")
    found = on_all(2, lambda cluster: Checkpointer(tmp_path / "file" / "x", cluster=cluster).restore())
    assert [type(error) for error in found] == [CheckpointWriteError] * 2


def test_errors_can_travel() -> None:
    import pickle

    from container.checkpoint.errors import DamagedCheckpointError, Skipped

    damage = Skipped(name="c", file="f", reason="r")
    for error in (DamagedCheckpointError(damage), NoUsableCheckpointError("/d", [damage])):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)


# --- states ---


class Variable:
    """As much of a TensorFlow variable as is used."""

    def __init__(self, name: str, value: Any, **more: Any) -> None:
        self.name = name
        self.content = np.asarray(value, np.float32)
        self.__dict__.update(more)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.content.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.content.dtype

    def numpy(self) -> Any:
        return self.content

    def assign(self, value: Any) -> None:
        assert value.shape == self.content.shape
        self.content = np.array(value, np.float32)


class Model:
    """As much of a tf_keras model as is used."""

    name = "model"
    built = True

    def __init__(self, *weights: Variable) -> None:
        self.weights = list(weights)


Model.__module__ = "tf_keras.models"


def test_partitioned_variables_are_saved_whole(tmp_path: Path) -> None:
    """A model of two servers is restored on one, and on three."""

    def model(*rows: int) -> Any:
        parts = [Variable(f"dense/kernel/part_{index}:0", np.zeros((count, 2))) for index, count in enumerate(rows)]
        kernel = parts if len(parts) > 1 else [Variable("dense/kernel:0", np.zeros((rows[0], 2)))]
        return Model(*kernel, Variable("dense/bias:0", np.zeros(2)))

    two = model(3, 2)
    two.weights[0].assign(np.arange(6.0).reshape(3, 2))
    two.weights[1].assign(np.arange(6.0, 10).reshape(2, 2))
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(two, step=1)
    for rows in ((5,), (2, 2, 1)):
        other = model(*rows)
        Checkpointer(tmp_path, read_only=True).restore(other)
        joined = np.concatenate([variable.content for variable in other.weights[:-1]])
        assert (joined == np.arange(10).reshape(5, 2)).all()


def test_copies_of_a_distributed_variable_are_read_here(tmp_path: Path) -> None:
    """Without the usual reading, which can be a collective operation."""

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    def never(self: Any) -> Any:
        raise AssertionError("read in the collective way")

    class Distributed(Variable):
        numpy = never

    def distributed(aggregation: str, synchronization: str) -> Any:
        copies = (Variable("a", [1.0, 2]), Variable("b", [3.0, 6]))
        return Distributed(
            "v", [0, 0], values=copies, aggregation=Named(aggregation), synchronization=Named(synchronization)
        )

    def read(variable: Any) -> list[float]:
        return list(state_of({"v": variable}).groups()["arrays"][0].read())

    assert read(distributed("MEAN", "ON_READ")) == [2, 4]
    assert read(distributed("SUM", "ON_READ")) == [4, 8]
    assert read(distributed("MEAN", "ON_WRITE")) == [1, 2]
    assert read(distributed("ONLY_FIRST_REPLICA", "ON_READ")) == [1, 2]


@pytest.mark.parametrize(
    ("group", "saved", "ours", "same"),
    [
        ("model", "sequential_1/dense_2/kernel", "sequential/dense/kernel", True),
        ("model", "dense_1/kernel:0", "dense/kernel:0", True),
        ("model", "dense/kernel", "dense/bias", False),
        ("model", "first/kernel", "second/kernel", False),
        ("optimizer", "adam_2/sequential_2_dense_4_kernel_momentum", "adam/sequential_dense_kernel_momentum", True),
        ("optimizer", "adam/dense_kernel_momentum", "adam/dense_kernel_velocity", False),
        ("optimizer", "DistributedAdam/dense/kernel/m", "Adam/dense/kernel/m", True),
        ("optimizer", "m/dense_1/kernel", "m/dense/kernel", True),
        ("optimizer", "loss_scale_optimizer/adam_2/dense_1_kernel_momentum", "adam/dense_kernel_momentum", True),
        ("optimizer", "AdamW/m/dense_1/kernel", "m/dense/kernel", True),
        ("optimizer", "m/dense/kernel", "v/dense/kernel", False),
    ],
)
def test_names_that_mean_the_same(group: str, saved: str, ours: str, same: bool) -> None:
    slots = KerasState(Model(Variable(ours, [1.0, 2]))).groups()["model"]
    content = {f"0/{saved.removesuffix(':0')}": np.zeros(2, np.float32)}
    if same:
        compare(group, slots, content, loose=True)
    else:
        with pytest.raises(CheckpointMismatchError, match="it has"):
            compare(group, slots, content, loose=True)


# --- events, imports ---


def test_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(variables.EVENTS, f"{writing}:{os.fstat(writing).st_ino}")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays(1), epoch=1, step=1, metrics={"loss": 2.0})
        checkpointer.save(arrays(2), epoch=2, step=2)
        checkpointer.wait()
        os.truncate(tmp_path / "checkpoint-00000002-step-2" / "arrays.safetensors", 3)
        checkpointer.restore()
    os.close(writing)
    with open(reading) as file:
        events = [json.loads(line) for line in file]
    assert {event["kind"] for event in events} == {"checkpoint"}
    assert [event["data"]["action"] for event in events] == ["saved", "saved", "skipped", "restored"]
    saved = events[0]["data"]
    assert saved["name"] == "checkpoint-00000001-step-1" and saved["metrics"] == {"loss": 2.0} and saved["bytes"] > 60
    assert saved["write_s"] > 0 and saved["snapshot_s"] > 0
    assert events[2]["data"]["file"] == "arrays.safetensors"


def test_numbers_go_on_after_what_others_are_known_to_have_saved(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"w": np.zeros(1)}, epoch=1, step=10, wait=True)
        checkpointer.count_from(7)
        checkpointer.count_from(3)  # less is no news
        checkpointer.save({"w": np.ones(1)}, epoch=2, step=20, wait=True)
        restored = checkpointer.restore({"w": np.zeros(1)})
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-00000001-step-10",
        "checkpoint-00000008-step-20",
    ]
    assert restored is not None and (restored.serial, restored.step) == (8, 20)
