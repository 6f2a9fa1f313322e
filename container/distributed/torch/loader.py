"""Batches of a dataset for each rank: every record once in an epoch, from wherever a training was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import events
from container.contract.durations import Durations
from container.distributed.core.epoch_sharding import Dealing

if TYPE_CHECKING:
    from container.distributed.torch.collectives import Collectives


class Loader:
    """Yields this rank's batches; :meth:`container.distributed.torch.cluster.TorchCluster.loader` makes it.

    Iterating goes through what is left of an epoch. Every rank gets as many batches as every other. The records of a
    step are dealt to the ranks in turn, so that the place of all ranks in the epoch is one number: it is saved with
    :meth:`state_dict`, and holds for another number of ranks too.

    Args:
        dataset: A map-style dataset.
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
        from torch.utils.data import DataLoader

        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"loader() takes a map-style dataset, with __len__ and __getitem__, got a {type(dataset).__name__}: "
                "what cannot be counted cannot be dealt so that every rank makes equally many steps."
            )
        for name in ("batch_size", "sampler", "batch_sampler", "drop_last"):
            if name in options:
                raise TypeError(f"loader({name}=…): the loader itself deals the records; give global_batch_size.")
        if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int):
            raise TypeError(f"loader(global_batch_size=…) must be a whole number, got {global_batch_size!r}.")
        if global_batch_size < collectives.size:
            raise ValueError(
                f"loader(global_batch_size={global_batch_size}) is less than the {collectives.size} ranks: each needs "
                "a record in every step."
            )
        self._records = len(dataset)
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
        self._loader = DataLoader(dataset, batch_sampler=_Batches(self), **options)

    def __len__(self) -> int:
        """Return the steps that are left of the epoch."""
        return self._dealing().steps

    def __iter__(self) -> Iterator[Any]:
        dealing, rank = self._dealing(), self._collectives.rank
        durations = Durations()
        began = last = time.monotonic()
        steps = 0
        for step, batch in enumerate(self._loader):
            if step:
                last = self._stepped(durations, last)
            steps = step + 1
            mine = len(dealing.share(rank, step))
            self.position = dealing.after(step + 1)
            self.weight = mine * dealing.size / (self.position - dealing.after(step))
            yield batch
        if steps:
            last = self._stepped(durations, last)
        self.epoch, self.position = self.epoch + 1, 0
        seconds = round(last - began, 6)
        told = {"epoch": self.epoch, "steps": steps, "seconds": seconds, "batch_size": self._per_step}
        events.emit("steps", **told, durations=durations.to_dict())
        if steps and rank == 0 and seconds:
            events.emit("metric", name="samples_per_second", value=(dealing.after(steps) - dealing.position) / seconds)

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
        dealing, rank, order = self._dealing(), self._collectives.rank, self._order()
        for step in range(dealing.steps):
            # Without a record, a repeated one of weight 0: ranks that make fewer steps would let the others wait.
            mine = list(dealing.share(rank, step)) or [dealing.after(step)]
            yield mine if order is None else [order[place] for place in mine]

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
                f"the place in the data is of a dataset of {state['records']} records; this one has {self._records}."
            )
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]

    def _dealing(self) -> Dealing:
        return Dealing(
            records=self._records, position=self.position, size=self._collectives.size, per_step=self._per_step
        )

    def _order(self) -> list[int] | None:
        if not self._shuffle:
            return None
        import torch

        generator = torch.Generator()
        generator.manual_seed(hash((self._seed, self.epoch)))  # of numbers, which is the same in every process
        found: list[int] = torch.randperm(self._records, generator=generator).tolist()
        return found


class _Batches:
    """The loader's part as PyTorch's DataLoader takes it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.batches()

    def __len__(self) -> int:
        return len(self._loader)
