"""The cluster as a PyTorch script sees it: the same for torch_distributed and for one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from container.contract.detection import Surroundings
from container.contract.errors import DistributedError
from container.distributed.core.collectives import Collectives
from container.distributed.core.ranks import Ranks
from container.distributed.core.weight_check import STEPS, Guard
from container.distributed.torch.horovod import HorovodCollectives
from container.distributed.torch.loader import TorchLoader

_NOT_MET = (
    "the ranks are not connected yet, and would train separately. Under ElasticHorovod, wrap the function with the "
    "training steps in hvd.elastic.run, and pass it an hvd.elastic.TorchState with the model and the optimizer. If "
    "the script connects the ranks itself, use cluster.optimizer(…, check=False)."
)

#: The file that SageMaker's PyTorch images look for.
_MODEL_FILE = "model.pth"

_WHY_APART = (
    "The gradients are not added up over the ranks. Wrap the model with cluster.model(), and call the wrapped model, "
    "not the original. Under Horovod, call step() of the optimizer that cluster.optimizer() returns."
)


class TorchCluster(Ranks[Collectives]):
    """The processes that train together; :func:`container.distributed.init` makes it.

    Args:
        surroundings: What the environment said.
        collectives: How the ranks talk.
        device: This rank's device, a ``torch.device``.

    Attributes:
        device: This rank's device: its GPU, else the processor.
    """

    def __init__(self, surroundings: Surroundings, collectives: Collectives, device: Any) -> None:
        super().__init__(surroundings, collectives)
        self.device = device

    # --- the model ---

    def model(self, model: Any, **options: Any) -> Any:
        """Bring a module to this rank's device, and let it add up its gradients over the ranks.

        Args:
            model: A ``torch.nn.Module``. All ranks get rank 0's parameters and buffers.
            options: Of ``DistributedDataParallel``, such as ``find_unused_parameters``.

        Returns:
            The module in a ``DistributedDataParallel``; of one process, and under Horovod, whose optimizer does that,
            the module itself.

        Raises:
            TypeError: there are options, and Horovod has none.
        """
        model = model.to(self.device)
        if isinstance(self.collectives, HorovodCollectives):
            self._refuse_options(options)
            return self.collectives.model(model)
        if self.size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.device.index])
        return DistributedDataParallel(model, **options)

    def optimizer(self, optimizer: Any, *, check: bool = True) -> Any:
        """Compare the ranks' weights after some of the optimizer's first steps: 1, 2, 8, 32 and 128.

        Ranks that train apart fail then, in words. Parameters that are sharded over the ranks (FSDP) are not compared.
        Under ``ElasticHorovod`` the steps are counted from when the ranks last met in ``hvd.elastic.TorchState``.

        Args:
            optimizer: A ``torch.optim.Optimizer``.
            check: False where ranks are to have weights of their own.

        Returns:
            It; under Horovod its ``DistributedOptimizer``, which averages the gradients.
        """
        if isinstance(self.collectives, HorovodCollectives):
            optimizer = self.collectives.optimizer(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not check or any(_is_sharded(parameter) for parameter in parameters):
            return optimizer
        comparing = Comparing(self.collectives, parameters)
        if self._compare(comparing):
            optimizer.register_step_pre_hook(comparing.steps)
            optimizer.register_step_post_hook(comparing.stepped)
        return optimizer

    def _compare(self, comparing: Comparing) -> bool:
        """Begin to compare weights, where there are others to compare them with."""
        if self.size > 1:
            comparing.begin()
        return self.size > 1

    @staticmethod
    def _refuse_options(options: Mapping[str, Any]) -> None:
        if options:
            raise TypeError(
                f"model({', '.join(options)}=…): Horovod has no such option. Leave it out under MPI(…) and "
                "ElasticHorovod(…)."
            )

    def check_weights(self, model: Any) -> None:
        """Compare the parameters of all ranks. All must call it.

        Args:
            model: A module.

        Raises:
            WeightsDifferError: on every rank, when they differ.
        """
        Guard(self.collectives).check(_arrays(list(model.parameters())), cause=_WHY_APART)

    def scale(self, learning_rate: float) -> float:
        """Return the learning rate for all ranks together: times their number.

        Args:
            learning_rate: The rate that suits one process.

        Raises:
            TypeError: it is not a number.
        """
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float):
            raise TypeError(f"scale() takes a number, got {learning_rate!r}.")
        return float(learning_rate) * self.size

    # --- data ---

    def loader(
        self, dataset: Any, *, global_batch_size: int, shuffle: bool = False, seed: int = 0, **options: Any
    ) -> TorchLoader:
        """Return this rank's batches of a dataset: every record once in an epoch, over all ranks.

        Args:
            dataset: A map-style dataset, the same on every rank.
            global_batch_size: Records in one step of all ranks together.
            shuffle: Whether each epoch has an order of its own.
            seed: For the shuffling.
            options: More of PyTorch's ``DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory`` …

        Raises:
            TypeError: the dataset cannot be counted, or an option is the loader's own.
            ValueError: the batch is smaller than the number of ranks, or there are no records.
        """
        return TorchLoader(
            dataset, self.collectives, global_batch_size=global_batch_size, shuffle=shuffle, seed=seed, **options
        )

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        return super()._array(value.detach().cpu() if hasattr(value, "detach") else value)

    def export(self, model: Any, directory: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the module's ``state_dict`` to ``model.pth``, on rank 0.

        Args:
            model: A module, wrapped or not.
            directory: The folder; None for ``$SM_MODEL_DIR``.

        Returns:
            The file; None on other ranks.

        Raises:
            DistributedError: neither a directory nor SM_MODEL_DIR is given.
        """
        folder = self._export_folder(directory)
        if folder is None:
            return None
        import torch

        file = folder / _MODEL_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_name(f".{file.name}-{os.getpid()}")
        state = unwrapped(model).state_dict()
        torch.save({name: value.cpu() if hasattr(value, "cpu") else value for name, value in state.items()}, staged)
        staged.replace(file)
        return file


class Comparing:
    """Compares the ranks' weights after some of an optimizer's steps.

    A step of Horovod's optimizer has one of the optimizer within it, for which PyTorch calls the hooks again: steps
    within steps are not counted.

    Args:
        collectives: How the ranks talk.
        parameters: The weights.
    """

    def __init__(self, collectives: Collectives, parameters: list[Any]) -> None:
        self._guard = Guard(collectives)
        self._parameters = parameters
        self._steps: int | None = 0
        self._depth = 0
        self._have_met = True

    def begin(self) -> None:
        """Count the steps from here on. All ranks call it between the same steps."""
        self._guard.start(_arrays(self._parameters))
        self._steps, self._depth, self._have_met = 0, 0, True

    def wait_for_meeting(self) -> None:
        """Refuse steps until :meth:`begin`."""
        self._have_met = False

    def pause(self) -> None:
        """Count no steps until :meth:`begin`: not all ranks make them."""
        self._steps, self._have_met = None, True

    def steps(self, *_: Any) -> None:
        """Take note that a step begins.

        Raises:
            DistributedError: the ranks have not met.
        """
        self._depth += 1
        if not self._have_met:
            self._depth = 0
            raise DistributedError(_NOT_MET)

    def stepped(self, *_: Any) -> None:
        """Count a step; compare the weights if it is one of :data:`STEPS`."""
        self._depth -= 1
        if self._steps is None or self._depth:
            return
        self._steps += 1
        if self._steps in STEPS:
            self._guard.check(_arrays(self._parameters), step=self._steps, cause=_WHY_APART)


def unwrapped(model: Any) -> Any:
    """Return the module within a ``DistributedDataParallel``; any other one as it is."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def _is_sharded(parameter: Any) -> bool:
    return hasattr(parameter, "placements") or type(parameter).__name__ == "FlatParameter"


def _arrays(parameters: list[Any]) -> list[np.ndarray[Any, Any]]:
    import torch

    found = []
    for parameter in parameters:
        tensor = parameter.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # numpy has no such numbers; all of them are numbers of 32 bits too
            tensor = tensor.float()
        found.append(tensor.numpy())
    return found
