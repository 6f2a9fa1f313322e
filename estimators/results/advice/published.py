"""List well-known models by size. The numbers of parameters are computed from the architectures in the
models' papers.
"""

from __future__ import annotations

from container.contract.frozen import dataclass
from estimators.results.advice.model import Workload

_FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model whose size is known.

    Attributes:
        name: The model's name.
        parameters: The number of parameters.
        largest: The number of parameters in the largest layer.
        tensors: The number of trainable variables.
    """

    name: str
    parameters: float
    largest: float
    tensors: int

    def workload(self, *, compute_s: float, batch_size: int = 64) -> Workload:
        """Return the model's workload, from which the cost model predicts the time of a step.

        Args:
            compute_s: The time that one process computes in a step, in seconds.
            batch_size: The number of records in one process's part of a step.
        """
        return Workload(
            compute_s=compute_s,
            gradient_bytes=self.parameters * _FLOAT,
            largest_bytes=self.largest * _FLOAT,
            tensors=self.tensors,
            batch_size=batch_size,
        )


MODELS = {
    model.name: model
    for model in (
        KnownModel(name="inception_v1", parameters=7.0e6, largest=1.024e6, tensors=116),
        KnownModel(name="inception_v3", parameters=23.8e6, largest=2.05e6, tensors=190),
        KnownModel(name="resnet50", parameters=25.6e6, largest=2.36e6, tensors=161),
        KnownModel(name="resnet101", parameters=44.5e6, largest=2.36e6, tensors=314),
        # The first fully connected layer has 25088 × 4096 weights.
        KnownModel(name="vgg16", parameters=138.4e6, largest=102.8e6, tensors=32),
    )
}
