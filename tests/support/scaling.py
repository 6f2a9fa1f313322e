"""Published measurements to hold the cost model against.

Speeds on one P100 at batch 64 are TensorFlow's own benchmarks of 2017 (tensorflow.org, "Benchmarks"), ResNet-101's from
the sample line of Horovod's docs/benchmarks.rst. Scaling on 128 servers with 4 Pascal GPUs each and 25 Gbit/s RoCE:
Horovod's README.
"""

from __future__ import annotations

from estimators.results.advice.model import Constants, Hardware, Workload
from estimators.results.advice.published import MODELS

_IMAGES_S = {"inception_v3": 142.0, "resnet50": 219.0, "resnet101": 103.6, "vgg16": 154.0}


def on_p100(name: str) -> Workload:
    """Return a model's step on one P100, batch 64."""
    return MODELS[name].workload(compute_s=64 / _IMAGES_S[name])


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
