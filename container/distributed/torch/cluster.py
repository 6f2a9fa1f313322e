"""Define the cluster for PyTorch scripts: the same API for torch_distributed, for Horovod and for one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from container.contract.detection import Surroundings
from container.contract.errors import DistributedError, RefusedError
from container.distributed.core import data_partition
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

#: Name of the file that SageMaker's PyTorch images load.
_MODEL_FILE = "model.pth"

_WHY_APART = (
    "The gradients are not added up over the ranks. Wrap the model with cluster.model(), and call the wrapped model, "
    "not the original. Under Horovod, call step() of the optimizer that cluster.optimizer() returns."
)


class TorchCluster(Ranks[Collectives]):
    """The cluster of processes that train together. :func:`container.distributed.init` creates the cluster.

    Args:
        surroundings: The cluster as detected from the environment variables.
        collectives: The collective operations of the ranks.
        device: This rank's device, as a ``torch.device``.

    Attributes:
        device: This rank's device, which is a GPU, or the CPU if there is no GPU.
    """

    def __init__(self, surroundings: Surroundings, collectives: Collectives, device: Any) -> None:
        super().__init__(surroundings, collectives)
        self.device = device

    # --- the model ---

    def model(self, model: Any, **options: Any) -> Any:
        """Move a module to this rank's device, and prepare the module for averaging its gradients over the ranks.

        Args:
            model: A ``torch.nn.Module``. All ranks get rank 0's parameters and buffers.
            options: Options of ``DistributedDataParallel``, such as ``find_unused_parameters``.

        Returns:
            The module, wrapped in a ``DistributedDataParallel``. With one process, the module itself. Under Horovod,
            also the module itself, because Horovod's optimizer averages the gradients.

        Raises:
            TypeError: ``options`` are passed under Horovod, which supports no options.
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
        """Prepare an optimizer for the training, and compare the ranks' weights after the optimizer's steps 1, 2, 8, 32
        and 128.

        If the weights differ because the ranks train separately, the training fails with an error message that names
        the likely cause. Parameters that are sharded over the ranks (FSDP) are not compared. Under ``ElasticHorovod``,
        steps are counted from the last rendezvous in ``hvd.elastic.TorchState``.

        Args:
            optimizer: A ``torch.optim.Optimizer``.
            check: Whether to compare the weights. Pass False if the ranks should have different weights.

        Returns:
            The optimizer. Under Horovod, a ``DistributedOptimizer`` that averages the gradients.
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
        """Start to compare the weights if there are several ranks. Return whether the comparison has started."""
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
        """Compare the parameters of all ranks. All ranks must call this method.

        Args:
            model: A ``torch.nn.Module``.

        Raises:
            WeightsDifferError: on every rank, if the parameters differ.
        """
        Guard(self.collectives).check(_arrays(list(model.parameters())), cause=_WHY_APART)

    def scale(self, learning_rate: float) -> float:
        """Return the learning rate for a training with all ranks: ``learning_rate`` multiplied by the number of ranks.

        Args:
            learning_rate: The learning rate for one process.

        Raises:
            TypeError: ``learning_rate`` is not a number.
        """
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float):
            raise TypeError(f"scale() takes a number, got {learning_rate!r}.")
        return float(learning_rate) * self.size

    # --- data ---

    def loader(
        self,
        dataset: Any,
        *,
        global_batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        holds: str | None = None,
        **options: Any,
    ) -> TorchLoader:
        """Return this rank's batches of a dataset. In an epoch, every record is used once by one of the ranks.

        Args:
            dataset: A map-style or an iterable dataset. The dataset must have the same records in the same order on
                every rank.
            global_batch_size: Number of records in one step of all ranks together.
            shuffle: Whether to shuffle the records. Each epoch has a different order.
            seed: The seed of the shuffling.
            holds: ``"all"`` if the job has a ShardedByS3Key channel, but the dataset does not read the channel's files.
                None if the job has no such channel.
            options: Options of PyTorch's ``DataLoader``, such as ``num_workers``, ``collate_fn`` and ``pin_memory``.

        Raises:
            TypeError: the dataset is neither a map-style nor an iterable dataset, or an option may be set only by the
                loader itself.
            ValueError: ``global_batch_size`` is smaller than the number of ranks, the dataset has no records, or an
                option does not work with an iterable dataset.
            RefusedError: the dataset may read files that differ between hosts.
        """
        if self.size > 1 and not hasattr(dataset, "holds"):
            check_holds(holds, data_partition.sharded_files(os.environ))
        return TorchLoader(
            dataset, self.collectives, global_batch_size=global_batch_size, shuffle=shuffle, seed=seed, **options
        )

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        return super()._array(_numpy(value) if hasattr(value, "detach") else value)

    def export(self, model: Any, directory: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the module's ``state_dict`` to the file ``model.pth``. Only rank 0 writes.

        Args:
            model: A module, which may be wrapped in a ``DistributedDataParallel``.
            directory: The folder of the file. None for ``$SM_MODEL_DIR``.

        Returns:
            The path of the file. None on other ranks.

        Raises:
            DistributedError: ``directory`` is None, and SM_MODEL_DIR is not set.
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


def check_holds(holds: str | None, sharded: str) -> None:
    """Check that the records of a loader's dataset are the same on every rank.

    Args:
        holds: The argument of :meth:`TorchCluster.loader`.
        sharded: The names of the channels whose files differ between hosts, or "".

    Raises:
        RefusedError: the records may differ between hosts.
    """
    if holds == "all" or (holds is None and not sharded):
        return
    why = f"channel {sharded} of this job is ShardedByS3Key" if sharded else f"loader(holds={holds!r})"
    raise RefusedError(
        f"{why}: each host has different files, but the loader divides records that every rank has. Give the channel "
        "distribution='FullyReplicated'. If the dataset reads other files, pass holds='all' to loader()."
    )


class Comparing:
    """A counter of an optimizer's steps that compares the ranks' weights after some of the steps.

    PyTorch calls this object's hooks before and after each step. A step of Horovod's optimizer contains a step of the
    original optimizer, for which PyTorch calls the hooks too. The inner step is not counted.

    Args:
        collectives: The collective operations of the ranks.
        parameters: The weights, as PyTorch parameters.
    """

    def __init__(self, collectives: Collectives, parameters: list[Any]) -> None:
        self._guard = Guard(collectives)
        self._parameters = parameters
        self._steps: int | None = 0
        self._depth = 0
        self._have_met = True

    def begin(self) -> None:
        """Start to count the steps. All ranks must call this method after the same step."""
        self._guard.start(_arrays(self._parameters))
        self._steps, self._depth, self._have_met = 0, 0, True

    def wait_for_meeting(self) -> None:
        """Require a rendezvous: make :meth:`steps` raise an error until :meth:`begin` or :meth:`pause` is called."""
        self._have_met = False

    def pause(self) -> None:
        """Stop counting steps until :meth:`begin` is called.

        The steps in between are not counted, because not all ranks do these steps.
        """
        self._steps, self._have_met = None, True

    def steps(self, *_: Any) -> None:
        """Check, at the beginning of a step, that a rendezvous has taken place. PyTorch calls this hook.

        Raises:
            DistributedError: the ranks have not had a rendezvous yet.
        """
        self._depth += 1
        if not self._have_met:
            self._depth = 0
            raise DistributedError(_NOT_MET)

    def stepped(self, *_: Any) -> None:
        """Count a finished step. Compare the weights if the number of steps is one of :data:`STEPS`."""
        self._depth -= 1
        if self._steps is None or self._depth:
            return
        self._steps += 1
        if self._steps in STEPS:
            self._guard.check(_arrays(self._parameters), step=self._steps, cause=_WHY_APART)


def unwrapped(model: Any) -> Any:
    """Return the module in a ``DistributedDataParallel``. Return any other module unchanged."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def _is_sharded(parameter: Any) -> bool:
    return hasattr(parameter, "placements") or type(parameter).__name__ == "FlatParameter"


def _arrays(parameters: list[Any]) -> list[np.ndarray[Any, Any]]:
    return [_numpy(parameter) for parameter in parameters]


def _numpy(tensor: Any) -> np.ndarray[Any, Any]:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.element_size() < 4 and tensor.dtype != torch.float16:
        tensor = tensor.float()  # numpy has no such type, for example bfloat16; 32-bit floats represent all its values
    found: np.ndarray[Any, Any] = tensor.numpy()
    return found
