"""Batches of a dataset for each rank: every record once in an epoch, from wherever a training was."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import events
from container.contract.durations import Durations
from container.contract.errors import RefusedError
from container.distributed.core.epoch_sharding import Dealing

if TYPE_CHECKING:
    from container.distributed.core.collectives import Collectives


class TorchLoader:
    """Yields this rank's batches; :meth:`container.distributed.torch.cluster.TorchCluster.loader` makes it.

    Iterating goes through what is left of an epoch. Every rank gets as many batches as every other. The records of a
    step are dealt to the ranks in turn, so that the place of all ranks in the epoch is one number: it is saved with
    :meth:`state_dict`, and holds for another number of ranks too.

    Args:
        dataset: A map-style dataset; or an iterable one that gives every rank all records, in the same order.
        collectives: How many ranks there are, and which one this is.
        global_batch_size: Records in one step of all ranks.
        shuffle: Whether each epoch has an order of its own, a function of the seed and the epoch.
        seed: For the shuffling.
        options: For PyTorch's ``DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory`` …

    Attributes:
        epoch: The epoch that comes next, or is under way, from 0.
        position: Records of it that all ranks together have been given.
        weight: By what the loss of the last batch, a mean, is to be multiplied, so that the mean of the ranks'
            gradients is that of the step's records: 1.0 where all ranks have equally many, 0.0 for one that repeats a
            record since there is none left for it.

    Raises:
        TypeError: the dataset has no length or no items, or an option is the loader's own.
        ValueError: the batch is smaller than the number of ranks, or there are no records.
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
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0
        self.position = 0
        self.weight = 1.0
        self._settled = False
        self._stream = dataset if streams else None
        if streams:
            collate = options.pop("collate_fn", None)
            self._loader = DataLoader(_dealt(self), batch_size=None, collate_fn=_Collate(collate), **options)
        else:
            self._loader = DataLoader(dataset, batch_sampler=_Batches(self), **options)

    def __len__(self) -> int:
        """Return the steps that are left of the epoch.

        Raises:
            TypeError: it is a stream, whose end is not known.
        """
        if self._records is None:
            raise TypeError("a stream has no length")
        return self._dealing(self._records).steps

    def __iter__(self) -> Iterator[Any]:
        durations = Durations()
        began = last = time.monotonic()
        first, steps = self.position, 0
        for batch, mine, records in self._batches():
            if steps:
                last = self._stepped(durations, last)
            steps += 1
            self.position += records
            self.weight = mine * self._collectives.size / records
            yield batch
        if steps:
            last = self._stepped(durations, last)
        seconds, records = round(last - began, 6), self.position - first
        self.epoch, self.position = self.epoch + 1, 0
        told = {"epoch": self.epoch, "steps": steps, "seconds": seconds, "batch_size": self._per_step}
        events.emit("steps", **told, durations=durations.to_dict())
        if steps and self._collectives.rank == 0 and seconds:
            events.emit("metric", name="samples_per_second", value=records / seconds)

    def _batches(self) -> Iterator[tuple[Any, int, int]]:
        """Yield each batch, how many records of it count, and how many all ranks have in this step."""
        if self._records is None:
            yield from self._loader
            return
        dealing, rank = self._dealing(self._records), self._collectives.rank
        for step, batch in enumerate(self._loader):
            yield batch, len(dealing.share(rank, step)), dealing.after(step + 1) - dealing.after(step)

    def _stepped(self, durations: Durations, last: float) -> float:
        """Note that the step of the last batch is over; return when."""
        now = time.monotonic()
        if self._settled:
            durations.add(now - last, 1)
        else:  # the first one of all makes what the others find
            self._settled = True
            events.emit("phase", name="first_step")
        return now

    def batches(self) -> Iterator[list[int]]:
        """Yield the places in the dataset of this rank's records, step by step, from where the epoch is."""
        assert self._records is not None
        dealing, rank, order = self._dealing(self._records), self._collectives.rank, self._order(self._records)
        for step in range(dealing.steps):
            # Without a record, a repeated one of weight 0: ranks that make fewer steps would let the others wait.
            mine = list(dealing.share(rank, step)) or [dealing.after(step)]
            yield mine if order is None else [order[place] for place in mine]

    def dealt(self) -> Iterator[tuple[list[Any], int, int]]:
        """Yield this rank's records of a stream, step by step from where the epoch is; see :meth:`_batches`."""
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
        """Return where all ranks are in the data."""
        return {"epoch": self.epoch, "position": self.position, "seed": self._seed, "records": self._records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with however many ranks there are now.

        Raises:
            ValueError: it is of another dataset.
        """
        if state["records"] != self._records:
            raise ValueError(
                f"the saved position belongs to a dataset with {_counted(state['records'])}, but this dataset has "
                f"{_counted(self._records)}."
            )
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]

    def _dealing(self, records: int) -> Dealing:
        return Dealing(records=records, position=self.position, size=self._collectives.size, per_step=self._per_step)

    def _order(self, records: int) -> list[int] | None:
        if not self._shuffle:
            return None
        import torch

        generator = torch.Generator()
        generator.manual_seed(hash((self._seed, self.epoch)))  # of numbers, which is the same in every process
        found: list[int] = torch.randperm(records, generator=generator).tolist()
        return found


class _Batches:
    """The loader's part as PyTorch's DataLoader takes it."""

    def __init__(self, loader: TorchLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.batches()

    def __len__(self) -> int:
        return len(self._loader)


class _Collate:
    """Makes a batch of a rank's records, as PyTorch's DataLoader would.

    Args:
        collate: The user's function; None for PyTorch's own.
    """

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, step: tuple[list[Any], int, int]) -> tuple[Any, int, int]:
        """Return the batch with its counts."""
        from torch.utils.data import default_collate

        records, mine, all_ranks = step
        return (self._collate or default_collate)(records), mine, all_ranks


def _dealt(loader: TorchLoader) -> Any:
    """Return a stream's steps as PyTorch's DataLoader takes them."""
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
