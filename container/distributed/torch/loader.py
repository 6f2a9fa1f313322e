"""Load the batches of a dataset for each rank.

Every record is used once in an epoch. A training can continue at any position in the dataset.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import events
from container.contract.durations import Durations
from container.contract.errors import RefusedError
from container.contract.events import SIGN_OF_LIFE_S
from container.distributed.core.epoch_sharding import Dealing

if TYPE_CHECKING:
    from container.distributed.core.collectives import Collectives


class TorchLoader:
    """A loader that yields this rank's batches. :meth:`container.distributed.torch.cluster.TorchCluster.loader` creates
    the loader.

    An iteration yields the remaining batches of the current epoch. Every rank gets the same number of batches. The
    records of a step are assigned to the ranks in turn. Therefore one number describes the position of all ranks in the
    epoch. :meth:`state_dict` contains this number. A training with another number of ranks can also continue at this
    position.

    Args:
        dataset: A map-style or an iterable dataset. The dataset must have the same records in the same order on every
            rank.
        collectives: The collective operations, which have the number of this rank and the number of ranks.
        global_batch_size: Number of records in one step of all ranks together.
        shuffle: Whether to shuffle the records. The order of an epoch depends only on the seed and the epoch.
        seed: The seed of the shuffling.
        options: Options of PyTorch's ``DataLoader``, such as ``num_workers``, ``collate_fn`` and ``pin_memory``.

    Attributes:
        epoch: The number of the current epoch, from 0. Between two epochs, the number of the next epoch.
        position: Number of records of the epoch that all ranks together have consumed.
        weight: Factor by which the script must multiply the loss of the last batch, if the loss is a mean over records.
            With this factor, the mean of the ranks' gradients equals the gradient of the mean loss over the step's
            records. The factor is 1.0 if all ranks have the same number of records. The factor is 0.0 for a rank that
            repeats a record because no record is left for this rank.

    Raises:
        TypeError: the dataset is neither a map-style nor an iterable dataset, an option may be set only by the loader
            itself, or ``seed`` is not a whole number.
        ValueError: ``global_batch_size`` is smaller than the number of ranks, the dataset has no records, or an option
            does not work with an iterable dataset.
    """

    def __init__(
        self,
        dataset: Any,
        collectives: Collectives,
        *,
        global_batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        from torch.utils.data import DataLoader, IterableDataset

        streams = isinstance(dataset, IterableDataset)
        if not streams and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"loader() takes a map-style dataset, with __len__ and __getitem__, or an IterableDataset; got a "
                f"{type(dataset).__name__}."
            )
        if streams:
            _check_stream(dataset, shuffle=shuffle, workers=options.get("num_workers", 0))
            if options.get("persistent_workers"):
                raise ValueError(
                    "loader(persistent_workers=True) is not possible for a stream, whose reader starts anew in each "
                    "epoch, at the position that all ranks have reached. Leave persistent_workers out."
                )
        for name in ("batch_size", "sampler", "batch_sampler", "drop_last"):
            if name in options:
                raise TypeError(
                    f"loader({name}=…): the loader itself divides the records. Leave {name} out, and give "
                    "global_batch_size."
                )
        if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int):
            raise TypeError(f"loader(global_batch_size=…) must be a whole number, got {global_batch_size!r}.")
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"loader(seed=…) must be a whole number, the same on every rank; got {seed!r}.")
        if global_batch_size < collectives.size:
            raise ValueError(
                f"loader(global_batch_size={global_batch_size}) is less than the {collectives.size} ranks, but each "
                "rank needs a record in every step."
            )
        self._records = None if streams else len(dataset)
        if self._records == 0:
            raise ValueError("loader(): the dataset has no records.")
        self._collectives = collectives
        self._per_step = global_batch_size
        self._shuffle = bool(shuffle)
        self._seed = int(seed)
        self.epoch = 0
        self.position = 0
        self._restored = 0  # the position at which an iteration may begin
        self._has_warned = False
        self.weight = 1.0
        self._settled = False
        self._stream = dataset if streams else None
        if streams:
            collate = options.pop("collate_fn", None)
            self._loader = DataLoader(_dealt(self), batch_size=None, collate_fn=_Collate(collate), **options)
        else:
            self._loader = DataLoader(dataset, batch_sampler=_Batches(self), **options)

    def __len__(self) -> int:
        """Return the number of remaining steps in the epoch.

        Raises:
            TypeError: the dataset is an iterable dataset, whose length is not known.
        """
        if self._records is None:
            raise TypeError("a stream has no length")
        return self._dealing(self._records).steps

    def __iter__(self) -> Iterator[Any]:
        if self.position != self._restored and not self._has_warned:
            self._has_warned = True
            self._warn_of_earlier_iteration()
        durations = Durations()
        began = last = spoke = time.monotonic()
        first, steps = self.position, 0
        for batch, mine, records in self._batches():
            if steps:
                last = self._stepped(durations, last)
                if last - spoke > SIGN_OF_LIFE_S:
                    spoke = last
                    self._tell_within(steps, last - began)
            steps += 1
            self.position += records
            self.weight = mine * self._collectives.size / records
            yield batch
        if steps:
            last = self._stepped(durations, last)
        elif first == 0:
            raise ValueError(
                f"loader(): the dataset has no records in epoch {self.epoch}. Each call of its __iter__ must return a "
                "new iterator."
            )
        seconds, records = round(last - began, 6), self.position - first
        self.epoch, self.position, self._restored = self.epoch + 1, 0, 0
        told = {"epoch": self.epoch, "steps": steps, "seconds": seconds, "batch_size": self._per_step}
        events.emit("steps", **told, durations=durations.to_dict())
        if steps and self._collectives.rank == 0 and seconds:
            events.emit("metric", name="samples_per_second", value=records / seconds)

    def _batches(self) -> Iterator[tuple[Any, int, int]]:
        """Yield three values for each step.

        Yields:
            The batch of this rank, the number of this rank's records (a repeated record does not count), and the number
            of records of all ranks.
        """
        if self._records is None:
            yield from self._loader
            return
        dealing, rank = self._dealing(self._records), self._collectives.rank
        for step, batch in enumerate(self._loader):
            yield batch, len(dealing.share(rank, step)), dealing.after(step + 1) - dealing.after(step)

    def _warn_of_earlier_iteration(self) -> None:
        """Warn that this iteration continues after an earlier, unfinished iteration, such as ``next(iter(loader))``."""
        warnings.warn(
            f"this iteration over the loader continues epoch {self.epoch} after the first {self.position:,} records, "
            "because an earlier iteration ended there. To look at a batch before the training, use the dataset, or "
            "save loader.state_dict() before, and load it again.",
            stacklevel=3,
        )

    def _stepped(self, durations: Durations, last: float) -> float:
        """Add the duration of the step of the last batch to ``durations``. For the first step, report the end of the
        step instead. Return the current time.

        Args:
            durations: The durations of the epoch's steps.
            last: The time at which the previous step ended, as ``time.monotonic()``.
        """
        now = time.monotonic()
        if self._settled:
            durations.add(now - last, 1)
        else:  # the first step is not timed, because it includes initialization
            self._settled = True
            events.emit("phase", name="first_step")
        return now

    def _tell_within(self, step: int, seconds: float) -> None:
        """Report, on rank 0, the number of finished steps of the epoch. Long epochs thus show progress.

        Args:
            step: Number of finished steps in this iteration.
            seconds: Duration of these steps.
        """
        if self._collectives.rank == 0:
            known = {} if self._records is None else {"steps": step + self._dealing(self._records).steps}
            events.emit("within_epoch", epoch=self.epoch + 1, step=step, seconds=round(seconds, 6), **known)

    def batches(self) -> Iterator[list[int]]:
        """Yield, for each remaining step of the epoch, the indices of this rank's records in the dataset."""
        assert self._records is not None
        dealing, rank, order = self._dealing(self._records), self._collectives.rank, self._order(self._records)
        for step in range(dealing.steps):
            # A rank that has no record left repeats a record with weight 0, because the other ranks would wait for a
            # rank that makes fewer steps.
            mine = list(dealing.share(rank, step)) or [dealing.after(step)]
            yield mine if order is None else [order[place] for place in mine]

    def dealt(self) -> Iterator[tuple[list[Any], int, int]]:
        """Yield three values for each remaining step of the epoch of an iterable dataset.

        Yields:
            The records of this rank, their number (a repeated record does not count), and the number of records of all
            ranks.
        """
        assert self._stream is not None
        rank, size = self._collectives.rank, self._collectives.size
        if hasattr(self._stream, "resume"):
            self._stream.resume(self.epoch, self.position)
            records = iter(self._stream)
        else:
            records = itertools.islice(self._stream, self.position, None)
        while step := list(itertools.islice(records, self._per_step)):
            mine = step[rank::size]
            yield mine or step[:1], len(mine), len(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks in the dataset."""
        position = {"epoch": self.epoch, "position": self.position, "seed": self._seed, "records": self._records}
        return {**position, "shuffle": self._shuffle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position from :meth:`state_dict`. The number of ranks may have changed.

        Raises:
            ValueError: the position belongs to a dataset with a different number of records, or to a different order.
        """
        if state["records"] != self._records:
            raise ValueError(
                f"the saved position belongs to a dataset with {_counted(state['records'])}, but this dataset has "
                f"{_counted(self._records)}."
            )
        shuffle = state.get("shuffle", self._shuffle)  # older checkpoints do not contain it
        if state["position"] and shuffle != self._shuffle:
            raise ValueError(
                f"the saved position is within an epoch with shuffle={shuffle}, but this loader has "
                f"shuffle={self._shuffle}, so the remaining records are not known."
            )
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]
        self._restored = self.position

    def _dealing(self, records: int) -> Dealing:
        return Dealing(records=records, position=self.position, size=self._collectives.size, per_step=self._per_step)

    def _order(self, records: int) -> list[int] | None:
        if not self._shuffle:
            return None
        import torch

        generator = torch.Generator()
        generator.manual_seed(hash((self._seed, self.epoch)))  # the hash of numbers is the same in every process
        found: list[int] = torch.randperm(records, generator=generator).tolist()
        return found


class _Batches:
    """The batches of this rank as lists of indices, for the argument ``batch_sampler`` of PyTorch's DataLoader."""

    def __init__(self, loader: TorchLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.batches()

    def __len__(self) -> int:
        return len(self._loader)


class _Collate:
    """A function that creates a batch from a rank's records, as PyTorch's DataLoader does.

    Args:
        collate: The user's ``collate_fn``. None for PyTorch's default function.
    """

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, step: tuple[list[Any], int, int]) -> tuple[Any, int, int]:
        """Convert the records of a step to a batch. Return the batch, and the two numbers of the argument unchanged.

        Args:
            step: The three values of :meth:`TorchLoader.dealt`.
        """
        from torch.utils.data import default_collate

        records, mine, all_ranks = step
        return (self._collate or default_collate)(records), mine, all_ranks


def _dealt(loader: TorchLoader) -> Any:
    """Return an iterable dataset for PyTorch's DataLoader. The elements are the steps of :meth:`TorchLoader.dealt`."""
    from torch.utils.data import IterableDataset

    class Dealt(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return loader.dealt()

    return Dealt()


def _check_stream(dataset: Any, *, shuffle: bool, workers: int) -> None:
    held = getattr(dataset, "holds", "all")
    if held != "all":
        raise RefusedError(
            "loader(): the channel is ShardedByS3Key, so ranks may have unequal numbers of records and would wait "
            "for each other. Give the channel distribution='FullyReplicated': the loader divides the records."
        )
    if shuffle:
        raise ValueError(
            "loader(shuffle=True): the loader cannot shuffle a stream. Leave shuffle out. To shuffle a channel, set "
            "ShuffleConfig."
        )
    if workers > 1:
        raise ValueError(f"loader(num_workers={workers}): a stream has only one reader. Use num_workers=0 or 1.")


def _counted(records: int | None) -> str:
    return f"{records} records" if records is not None else "an unknown number of records"
