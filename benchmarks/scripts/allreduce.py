"""Reduces arrays of growing size over the ranks, timed, for ``benchmarks/allreduce.py`` and ``links.py``.

Rank 0 writes ``--result``.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

from container import distributed

WARM_UP = 2
LEAST = 3


def main() -> None:
    """Time each size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", required=True, help="bytes, with commas between")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="reductions of each size that do not count")
    parser.add_argument("--least", type=int, default=LEAST, help="reductions of each size, however long they take")
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()
    cluster = distributed.init()

    found = {}
    for size in (int(text) for text in options.sizes.split(",")):
        tensor = tf.zeros([size // 4], tf.float32)

        @tf.function
        def reduce(tensor: tf.Tensor = tensor, size: int = size) -> tf.Tensor:
            return cluster.collectives.reduce([tensor], "sum", name=f"bench.{size}")[0]

        for _ in range(options.warm_up):
            reduce()
        began = time.perf_counter()
        reduce()
        times = cluster.broadcast_object(max(options.least, int(options.seconds / (time.perf_counter() - began))))
        cluster.barrier()
        began = time.perf_counter()
        for _ in range(times):
            reduce()
        found[str(size)] = (time.perf_counter() - began) / times
    if cluster.is_chief:
        with open(options.result, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
