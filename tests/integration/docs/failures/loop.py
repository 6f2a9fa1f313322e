import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init()
dataset = range(3)
seen = []
train_step = seen.append


def save():
    raise AssertionError("nothing was to be ended")


# DOCUMENTED
assert seen == [0, 1, 2]
