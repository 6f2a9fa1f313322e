"""The script's API for PyTorch in this process; how ranks share is in tests/training/cluster/test_torch.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feeding
import pytest

from container.checkpoint import Checkpointer, CheckpointMismatchError, SingleProcess
from container.contract.detection import Surroundings
from container.contract.errors import RefusedError
from container.distributed.core.collectives import Alone
from container.distributed.torch.cluster import TorchCluster
from container.distributed.torch.loader import TorchLoader
from container.formats import RecordFormat

if TYPE_CHECKING:
    import torch

    from container.pipe_dataset import PipeModeIterable

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def torch_is_imported() -> None:
    """Import torch for these tests: every process of a run loads this file, and one runs them."""
    global PipeModeIterable, torch
    import torch

    from container.pipe_dataset import PipeModeIterable


class Rank(Alone):
    """One of several, who need nothing of each other."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def loaders(size: int, records: int = 23, **options: Any) -> list[TorchLoader]:
    options = {"global_batch_size": 8, "shuffle": True, "seed": 5, **options}
    return [TorchLoader(list(range(records)), Rank(rank, size), **options) for rank in range(size)]


def epoch(ranks: list[TorchLoader], steps: int | None = None) -> list[list[list[int]]]:
    """What each rank gets in each step; weight 0 counts as nothing."""
    iterators = [iter(rank) for rank in ranks]
    found: list[list[list[int]]] = []
    for _ in range(len(ranks[0]) if steps is None else steps):
        batches = [next(iterator).tolist() for iterator in iterators]
        found.append([batch if rank.weight else [] for batch, rank in zip(batches, ranks, strict=True)])
    if steps is None:
        assert [list(iterator) for iterator in iterators] == [[]] * len(ranks)
    return found


def flat(steps: list[list[list[int]]]) -> list[int]:
    return [record for step in steps for rank in step for record in rank]


@pytest.mark.parametrize(("size", "records"), [(1, 23), (2, 23), (3, 24), (5, 18), (8, 17), (2, 3)])
def test_every_record_once_in_an_epoch_and_as_many_steps_on_each_rank(size: int, records: int) -> None:
    ranks = loaders(size, records)
    first, second = epoch(ranks), epoch(ranks)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(records))
    assert flat(first) != flat(second) and ranks[0].epoch == 2


def test_weights_make_the_mean_that_of_the_records() -> None:
    ranks = loaders(3, 10, global_batch_size=4)
    for batches in zip(*ranks, strict=True):
        counts = [len(batch) if rank.weight else 0 for batch, rank in zip(batches, ranks, strict=True)]
        assert [rank.weight for rank in ranks] == pytest.approx([count * 3 / sum(counts) for count in counts])


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 1), (1, 4)])
def test_an_epoch_goes_on_with_another_number_of_ranks(before: int, after: int) -> None:
    first = loaders(before)
    done = epoch(first, steps=2)
    states = [rank.state_dict() for rank in first]
    assert all(state == states[0] for state in states)
    others = loaders(after, seed=9)
    for rank in others:
        rank.load_state_dict(states[0])
    assert sorted(flat(done) + flat(epoch(others))) == list(range(23))
    with pytest.raises(ValueError, match="belongs to a dataset with 23 records, but this dataset has 24"):
        loaders(1, 24)[0].load_state_dict(states[0])


def test_workers_read_ahead_and_the_place_stays_that_of_the_training() -> None:
    (loader,) = loaders(1, num_workers=1)
    iterator = iter(loader)
    batch = next(iterator).tolist()
    assert (loader.position, len(batch), loader.state_dict()["position"]) == (8, 8, 8)
    assert sorted(batch + [record for rest in iterator for record in rest.tolist()]) == list(range(23))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 3}, TypeError, "give global_batch_size"),
        ({"global_batch_size": 1}, ValueError, "less than the 2 ranks"),
        ({"global_batch_size": 2.0}, TypeError, "whole number"),
        ({"seed": None}, TypeError, "the same on every rank"),  # its hash differs between processes
        ({"records": 0}, ValueError, "no records"),
    ],
)
def test_what_cannot_be_dealt(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        loaders(2, **options)


def stream(records: int, holds: str = "all") -> torch.utils.data.IterableDataset[int]:
    """All records, in the same order on every rank."""

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(records))

    made = Stream()
    made.holds = holds  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("size", "records", "workers"), [(1, 23, 0), (2, 23, 0), (5, 18, 0), (8, 17, 0), (2, 11, 1)])
def test_streams_are_dealt_as_well(size: int, records: int, workers: int) -> None:
    ranks = [
        TorchLoader(stream(records), Rank(rank, size), global_batch_size=8, num_workers=workers) for rank in range(size)
    ]
    iterators = [iter(rank) for rank in ranks]
    found: list[int] = []
    for batches in zip(*iterators, strict=True):
        found += [
            record for batch, rank in zip(batches, ranks, strict=True) if rank.weight for record in batch.tolist()
        ]
        if not workers and sum(len(batch) for batch in batches) < 8 and size <= 2:
            assert sum(rank.weight for rank in ranks) == pytest.approx(size)
    assert sorted(found) == list(range(records)) and ranks[0].epoch == 1


def test_a_stream_goes_on_where_it_was() -> None:
    first = TorchLoader(stream(20), Alone(), global_batch_size=8)
    assert next(iter(first)).tolist() == list(range(8))
    others = [TorchLoader(stream(20), Rank(rank, 2), global_batch_size=8) for rank in range(2)]
    for other in others:
        other.load_state_dict(first.state_dict())
    assert sorted(record for other in others for batch in other for record in batch.tolist()) == list(range(8, 20))
    with pytest.raises(TypeError, match="no length"):
        len(first)
    with pytest.raises(ValueError, match="within an epoch with shuffle=False"):
        loaders(1)[0].load_state_dict({**first.state_dict(), "records": 23})
    with pytest.raises(ValueError, match="an unknown number of records, but this dataset has 23 records"):
        loaders(1)[0].load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("holds", "options", "words"),
    [
        ("host", {}, "distribution='FullyReplicated'"),
        ("all", {"shuffle": True}, "ShuffleConfig"),
        ("all", {"num_workers": 2}, "one reader"),
        ("all", {"num_workers": 1, "persistent_workers": True}, "starts anew"),
    ],
)
def test_streams_that_cannot_be_dealt(holds: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, RefusedError), match=words):
        TorchLoader(stream(9, holds), Alone(), global_batch_size=2, **options)
    with pytest.raises(TypeError, match="map-style dataset, with __len__ and __getitem__, or an IterableDataset"):
        TorchLoader(iter([1]), Alone(), global_batch_size=2)


# --- Pipe mode ---


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.leaves("files")
def test_a_channel_in_pipe_mode(record_format: RecordFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = feeding.write_objects(tmp_path / "objects", [3, 0, 8], record_format)
    monkeypatch.setenv("SM_INPUT_DIR", str(tmp_path / "ml" / "input"))
    with feeding.agent(tmp_path / "ml", {"train": {"uri": str(tmp_path / "objects")}}) as host:
        host.fifo("train", 0)  # before that the agent forgets what an earlier process has read
        channel = PipeModeIterable("train", record_format.value)
        loader = TorchLoader(channel, Alone(), global_batch_size=4, collate_fn=list)
        assert [record for batch in loader for record in batch] == records
        iterator = iter(loader)
        assert next(iterator) == records[:4]
        later = TorchLoader(channel, Alone(), global_batch_size=4, collate_fn=list)
        later.load_state_dict({**loader.state_dict(), "epoch": 2})  # a FIFO that was begun is not read again
        del iterator
        assert [record for batch in later for record in batch] == records[4:]


def test_reading_a_channel_needs_no_tensorflow() -> None:
    program = """
import sys
from container.pipe_dataset import PipeModeIterable
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(feeding.__file__).parents[2])


# --- checkpoints ---


def test_a_stream_that_is_used_up_is_named() -> None:
    class Once(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        left = iter(range(10))

        def __iter__(self) -> Any:
            return self.left

    loader = TorchLoader(Once(), Rank(0, 1), global_batch_size=4)
    assert [len(batch) for batch in loader] == [4, 4, 2]
    with pytest.raises(ValueError, match=r"no records in epoch 1\. Each call of its __iter__ must return a new"):
        list(loader)


def test_an_epoch_without_the_records_of_an_earlier_iteration_is_told() -> None:
    (loader,) = loaders(1)
    before = loader.state_dict()
    next(iter(loader))  # to look at the shape of a batch, for example
    with pytest.warns(UserWarning, match="continues epoch 0 after the first 8 records, because an earlier iteration"):
        assert sum(len(batch) for batch in loader) == 15
    next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has been told
        next(iter(loader))
    loader.load_state_dict(before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [sum(len(batch) for batch in loader) for _ in range(2)] == [23, 23]


def trained(seed: int, steps: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(8, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def checkpointer(folder: Path, **options: Any) -> Checkpointer:
    return Checkpointer(folder, cluster=SingleProcess(), asynchronous=False, **options)


def test_state_dicts_come_back_as_they_were(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    half = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    (loader,) = loaders(1)
    next(iter(loader))
    with checkpointer(tmp_path) as saving:
        parts = {"model": model, "half": half, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        saving.save(parts, epoch=1, step=3, metadata={"note": "x"})
    others, (place,) = trained(2, steps=0), loaders(1)
    later = {
        "model": others[0],
        "half": torch.nn.Linear(2, 2, dtype=torch.bfloat16),
        "optimizer": others[1],
        "scheduler": torch.optim.lr_scheduler.StepLR(others[1], 7),
        "loader": place,
    }
    with checkpointer(tmp_path) as restoring:
        restored = restoring.restore(later)
    assert restored is not None and (restored.epoch, restored.step, restored.metadata) == (1, 3, {"note": "x"})
    for name, part in parts.items():
        assert equal(part.state_dict(), later[name].state_dict()), name
    assert place.position == 8


def test_tensors_come_back_in_place_and_keys_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    counts, half = torch.arange(3), torch.tensor(1.5, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    parts = {"counts": counts, "count": torch.tensor(5), "half": half, "weight": weight}
    later = {name: torch.zeros_like(value) for name, value in parts.items()}
    later["weight"] = torch.nn.Parameter(later["weight"])
    found = dict(later)
    with checkpointer(tmp_path / "tensors") as saving:
        saving.save(parts)
        saving.restore(later)
        assert all(later[name] is found[name] and equal(parts[name], found[name]) for name in parts)
        for name, other in (("half", torch.zeros((), dtype=torch.int16)), ("counts", torch.zeros(3).bfloat16())):
            with pytest.raises(CheckpointMismatchError, match=rf"{name} was saved as .*{str(other.dtype)[6:]}\b"):
                saving.restore({**later, name: other})
        with pytest.raises(TypeError, match=r"a sparse tensor cannot .* Save counts\.to_dense\(\)"):
            saving.save({"counts": counts.to_sparse()})
    alike = {1: torch.ones(1), "1": torch.zeros(1), "a/b": torch.ones(2), "a": {"b": torch.zeros(2)}}
    other = _Odd()
    with checkpointer(tmp_path / "alike") as saving:
        saving.save({"odd": _Odd(alike)})
        saving.restore({"odd": other})
    assert equal(other.state, alike)


def test_a_snapshot_keeps_the_place_of_its_moment_while_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, release = os.fsync, threading.Event()
    monkeypatch.setattr("os.fsync", lambda file: (release.wait(60), fsync(file)))
    (loader,) = loaders(1)
    parts = {"weights": (weights := torch.nn.Embedding(1, 1)), "loader": loader}
    with Checkpointer(tmp_path, cluster=SingleProcess(), pending=2) as saving:
        for step, _ in enumerate(loader):
            torch.nn.init.constant_(weights.weight, float(step))
            if step < 2:
                saving.save(parts, step=step)
        release.set()
    for step, name in enumerate(saving.checkpoints()):
        (later,), other = loaders(1), torch.nn.Embedding(1, 1)
        with checkpointer(tmp_path, read_only=True) as restoring:
            restoring.restore({"weights": other, "loader": later}, which=name)
        assert (later.position, other.weight.item()) == (8 * (step + 1), step)


def test_a_model_with_its_optimizer_and_the_rate_of_another_size(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    with checkpointer(tmp_path) as saving:
        saving.save(model, optimizer=optimizer, step=3)
    other, its = trained(2, steps=0)
    its.param_groups[0]["lr"] = 0.5
    with checkpointer(tmp_path, learning_rate="current") as restoring:
        restored = restoring.restore(other, optimizer=its)
    assert restored is not None and restored.rate_kept and its.param_groups[0]["lr"] == 0.5
    assert equal(model.state_dict(), other.state_dict()) and equal(
        optimizer.state_dict()["state"], its.state_dict()["state"]
    )


def scheduled(kind: str, rate: float) -> dict[str, Any]:
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
    schedules = torch.optim.lr_scheduler
    scheduler = {
        "step": lambda: schedules.StepLR(optimizer, 3),
        "lambda": lambda: schedules.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
        "cosine": lambda: schedules.CosineAnnealingLR(optimizer, 12),
        "one cycle": lambda: schedules.OneCycleLR(optimizer, max_lr=rate, total_steps=12),
        "cyclic": lambda: schedules.CyclicLR(optimizer, rate / 10, rate, step_size_up=4),
        "averaging": lambda: torch.optim.swa_utils.SWALR(optimizer, rate / 2, anneal_epochs=8),
        "warm-up": lambda: schedules.SequentialLR(
            optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.StepLR(optimizer, 2)], [4]
        ),
    }[kind]()
    # The scheduler comes first, because the order must not matter.
    return {"scheduler": scheduler, "module": module, "optimizer": optimizer}


def rates(parts: dict[str, Any], epochs: int) -> list[float]:
    found = []
    for _ in range(epochs):
        parts["optimizer"].step()
        parts["scheduler"].step()
        assert parts["scheduler"].get_last_lr() == [parts["optimizer"].param_groups[0]["lr"]]
        found.append(parts["optimizer"].param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("kind", ["step", "lambda", "cosine", "one cycle", "cyclic", "averaging", "warm-up"])
def test_a_schedule_continues_at_its_place_with_the_rate_of_another_size(tmp_path: Path, kind: str) -> None:
    parts, later = scheduled(kind, 0.1), scheduled(kind, 0.2)
    rates(parts, 5)
    expected = rates(scheduled(kind, 0.2), 10)
    with checkpointer(tmp_path) as saving:
        saving.save(parts, epoch=5)
    with checkpointer(tmp_path, learning_rate="current") as restoring:
        restored = restoring.restore(later)
    assert restored is not None and restored.rate_kept
    assert later["optimizer"].param_groups[0]["lr"] == pytest.approx(expected[4])
    assert later["scheduler"].get_last_lr() == [later["optimizer"].param_groups[0]["lr"]]
    assert rates(later, 5) == pytest.approx(expected[5:])


def test_the_rate_of_the_script_is_kept_whole_without_a_scheduler(tmp_path: Path) -> None:
    """A schedule that has ended at 0 is over, and a training that follows has another one, or none."""
    parts, later = scheduled("cosine", 0.1), scheduled("cosine", 0.2)
    rates(parts, 12)
    del parts["scheduler"], later["scheduler"]
    with checkpointer(tmp_path) as saving:
        saving.save(parts, epoch=12)
    with checkpointer(tmp_path, learning_rate="current") as restoring:
        restoring.restore(later)
    assert [later["optimizer"].param_groups[0][name] for name in ("lr", "initial_lr")] == [0.2, 0.2]


class Several:
    """An optimizer of several others, whose state is theirs."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    def state_dict(self) -> list[Any]:
        return [one.state_dict() for one in self.optimizers]

    def load_state_dict(self, state: list[Any]) -> None:
        for one, saved in zip(self.optimizers, state, strict=True):
            one.load_state_dict(saved)


def test_the_rate_of_an_optimizer_with_a_state_of_its_own_form_is_kept(tmp_path: Path) -> None:
    parts, later = scheduled("step", 0.1), scheduled("step", 0.2)
    rates(parts, 4)
    for one in (parts, later):
        one["optimizer"] = Several(one["optimizer"])
    with checkpointer(tmp_path) as saving:
        saving.save(parts, epoch=4)
    with checkpointer(tmp_path, learning_rate="current") as restoring:
        restored = restoring.restore(later)
    assert restored is not None and restored.rate_kept
    assert later["optimizer"].param_groups[0]["lr"] == pytest.approx(0.02)
    assert later["scheduler"].get_last_lr() == pytest.approx([0.02])


def test_another_model_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    with checkpointer(tmp_path) as saving:
        saving.save(model, step=3)
        with pytest.raises(TypeError, match="callback: a function in a state_dict cannot be saved"):
            saving.save({"model": model, "callback": _Odd()})
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 5))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with checkpointer(tmp_path) as restoring:
        with pytest.raises(CheckpointMismatchError, match=r"it has 2\.weight \[2, 3\] instead of \[5, 3\]"):
            restoring.restore(other)
        with pytest.raises(CheckpointMismatchError, match="holds model, but the call restores model, optimizer"):
            restoring.restore(model, optimizer=optimizer)
    assert equal(before, dict(other.state_dict()))


def test_an_error_says_what_a_refused_state_dict_has_left_changed(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    (loader,) = loaders(1)
    with checkpointer(tmp_path) as saving:
        saving.save({"model": model, "optimizer": optimizer, "loader": loader}, step=3)
    other, its = trained(2)
    frozen = torch.optim.AdamW(list(other.parameters())[2:])
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with checkpointer(tmp_path) as restoring:
        with pytest.raises(CheckpointMismatchError, match=r"optimizer's group\. Possibly changed: nothing\.") as caught:
            restoring.restore({"model": other, "optimizer": frozen, "loader": loaders(1)[0]})
        assert caught.value.changed == ()
        assert equal(before, dict(other.state_dict())) and not frozen.state
        with pytest.raises(
            CheckpointMismatchError, match=r"24 records\. Possibly changed: optimizer, loader\."
        ) as caught:
            restoring.restore({"model": other, "optimizer": its, "loader": loaders(1, 24)[0]})
        assert caught.value.changed == ("optimizer", "loader")
    assert equal(before, dict(other.state_dict()))


def test_an_object_that_changes_itself_before_it_refuses_counts_as_changed(tmp_path: Path) -> None:
    """torch's SequentialLR takes over all but its schedulers, and only then finds that there are fewer of them."""

    def schedule(optimizer: torch.optim.Optimizer, parts: int) -> torch.optim.lr_scheduler.SequentialLR:
        schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(parts)]
        return torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, list(range(1, parts)))

    model, optimizer = trained(1)
    with checkpointer(tmp_path) as saving:
        saving.save({"model": model, "schedule": schedule(optimizer, 3)}, step=3)
    other, its = trained(2)
    fewer = schedule(its, 2)
    with (
        checkpointer(tmp_path) as restoring,
        pytest.raises(CheckpointMismatchError, match=r"index out of range\. Possibly changed: schedule\.") as caught,
    ):
        restoring.restore({"model": other, "schedule": fewer})
    assert caught.value.changed == ("schedule",) and str(tmp_path) in str(caught.value)
    assert fewer.state_dict()["_milestones"] == [1, 2]


@pytest.mark.parametrize(
    "error", [TypeError("no such place"), AttributeError("no such place"), AssertionError()], ids=repr
)
def test_each_error_of_an_object_names_the_checkpoint_and_what_is_changed(tmp_path: Path, error: Exception) -> None:
    refused = _Refuses(error)
    with checkpointer(tmp_path) as saving:
        saving.save({"model": trained(1)[0], "sampler": refused}, step=3)
    reason = str(error) or type(error).__name__
    told = rf"{tmp_path}/.*match sampler: {reason}\. Possibly changed: sampler\."
    with checkpointer(tmp_path) as restoring, pytest.raises(CheckpointMismatchError, match=told) as caught:
        restoring.restore({"model": trained(2)[0], "sampler": refused})
    assert caught.value.changed == ("sampler",) and caught.value.__cause__ is error


class _Refuses:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        return {"place": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self.error


class _Odd:
    def __init__(self, state: Any = equal) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


# --- one process ---


def test_one_process_is_a_cluster_of_one(tmp_path: Path) -> None:
    cluster = TorchCluster(Surroundings(), Alone(), torch.device("cpu"))
    model = torch.nn.Linear(2, 1)
    assert cluster.model(model) is model and (cluster.size, cluster.is_chief, cluster.scale(0.1)) == (1, True, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert cluster.optimizer(optimizer) is optimizer
    assert cluster.all_reduce({"a": torch.ones(2), "b": 3}) == {"a": pytest.approx([1, 1]), "b": 3.0}
    assert cluster.all_reduce(torch.tensor(1.5, dtype=torch.bfloat16, requires_grad=True)) == 1.5
    file = cluster.export(model, tmp_path / "model")
    assert file is not None and [path.name for path in file.parent.iterdir()] == ["model.pth"]
    assert equal(dict(torch.load(file, weights_only=True)), dict(model.state_dict()))
