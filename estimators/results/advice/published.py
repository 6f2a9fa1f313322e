"""Models whose sizes are published: parameters and the largest layers follow from the papers' architectures."""

from __future__ import annotations

import dataclasses

from estimators.results.advice.model import Workload

_FLOAT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model as published.

    Attributes:
        name: What it is called.
        parameters: How many.
        largest: Those of its largest layer.
        tensors: How many trainable variables.
    """

    name: str
    parameters: float
    largest: float
    tensors: int

    def workload(self, *, compute_s: float, batch_size: int = 64) -> Workload:
        """Return a step of it."""
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
