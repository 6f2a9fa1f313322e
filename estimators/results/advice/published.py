"""Models whose sizes and speeds are published, and published measurements to hold the cost model against.

Sources: parameters and the largest layers follow from the papers' architectures. Speeds on one P100 at batch 64 are
TensorFlow's own benchmarks of 2017 (tensorflow.org, "Benchmarks"), ResNet-101's from the sample line of Horovod's
docs/benchmarks.rst. Scaling on 128 servers with 4 Pascal GPUs each and 25 Gbit/s RoCE: Horovod's README.
"""

from __future__ import annotations

import dataclasses

from estimators.results.advice.model import Constants, Hardware, Workload

_FLOAT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model as published.

    Attributes:
        name: What it is called.
        parameters: How many.
        largest: Those of its largest layer.
        tensors: How many trainable variables.
        p100_images_s: Images per second of one P100, batch 64; None where none was published.
    """

    name: str
    parameters: float
    largest: float
    tensors: int
    p100_images_s: float | None = None

    def workload(self, *, compute_s: float | None = None, batch_size: int = 64) -> Workload:
        """Return a step of it; by default on one P100."""
        if compute_s is None:
            if self.p100_images_s is None:
                raise ValueError(f"fleetfit has no published speed of {self.name}. Give compute_s=.")
            compute_s = batch_size / self.p100_images_s
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
        KnownModel(name="inception_v3", parameters=23.8e6, largest=2.05e6, tensors=190, p100_images_s=142.0),
        KnownModel(name="resnet50", parameters=25.6e6, largest=2.36e6, tensors=161, p100_images_s=219.0),
        KnownModel(name="resnet101", parameters=44.5e6, largest=2.36e6, tensors=314, p100_images_s=103.6),
        # The first fully connected layer has 25088 × 4096 weights.
        KnownModel(name="vgg16", parameters=138.4e6, largest=102.8e6, tensors=32, p100_images_s=154.0),
    )
}

#: 128 servers with 4 GPUs each and 25 Gbit/s.
HOROVOD_FLEET = Hardware(hosts=128, processes_per_host=4, bandwidth=25e9 / 8, local_bandwidth=10e9)
#: Horovod's scaling efficiency there.
HOROVOD_EFFICIENCY = {"inception_v3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
#: RDMA leaves a ring more of the link than TCP does.
HOROVOD_CONSTANTS = Constants(ring_share=0.92)

#: Of the parameter servers on the same machines: "lost half of the resources at 128 GPUs" (Sergeev, Del Balso:
#: Horovod, arXiv 1802.05799, figure 1).
SERVERS_FLEET = Hardware(hosts=32, processes_per_host=4, bandwidth=25e9 / 8, local_bandwidth=10e9)
SERVERS_EFFICIENCY = {"inception_v3": 0.5, "resnet101": 0.5}
