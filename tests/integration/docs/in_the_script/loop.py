import numpy as np

from container import distributed
from container.checkpoint import Checkpointer

model = {"weights": np.zeros(3, "float32")}
steps = 200


def train_step(weights):
    weights["weights"] += 1


# DOCUMENTED
restored = Checkpointer().restore(model)
assert restored.step == 200, restored
