import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer


def build():
    import numpy as np

    return {"weights": np.zeros(3, "float32")}


model = build()
steps = 200


def train_step(weights):
    weights["weights"] += 1


# DOCUMENTED
restored = Checkpointer().restore(model)
assert restored.step == 200, restored
