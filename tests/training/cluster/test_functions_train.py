"""One function under every strategy of TensorFlow: it trains, and rank 0's value comes back."""

from __future__ import annotations

from typing import Any

import clusters
import pytest
from imported import told

from estimators import MPI, CollectiveAllReduce, Distribution, ElasticHorovod, Mirrored, ParameterServer

pytestmark = [pytest.mark.tensorflow, pytest.mark.horovod]


@pytest.mark.parametrize(
    ("hosts", "strategy"),
    [
        (2, MPI()),
        pytest.param(2, CollectiveAllReduce(), marks=pytest.mark.soak),
        pytest.param(2, ParameterServer(), marks=pytest.mark.soak),
        pytest.param(1, Mirrored(devices=2), marks=pytest.mark.soak),
        pytest.param(2, ElasticHorovod(min_hosts=2, max_hosts=2), marks=pytest.mark.soak),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_function_trains(make: clusters.Make, hosts: int, strategy: Distribution) -> None:
    slope = 2.0

    def train(epochs: int) -> dict[str, Any]:
        import numpy as np
        import tensorflow as tf

        from container import distributed

        cluster = distributed.init()
        x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
        with cluster.scope():
            model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
            model.compile(optimizer=cluster.optimizer(tf.keras.optimizers.SGD(0.5)), loss="mse")
        data = lambda: tf.data.Dataset.from_tensor_slices((x, slope * x))  # noqa: E731
        cluster.fit(model, data, global_batch_size=16, epochs=epochs, verbose=0)
        return {"rank": cluster.rank, "weight": float(model.get_weights()[0][0, 0]), "size": cluster.size}

    estimator = make(
        "",
        hosts=hosts,
        entry_point=train,
        source_dir=None,
        distribution=strategy,
        hyperparameters={"epochs": 8},
        environment={"TF_USE_LEGACY_KERAS": "1"},
    )
    job = clusters.fit(estimator, logs=False)
    assert told(job, "imported") and told(job, "unfit") + told(job, "refused") == []
    found = job.value()
    assert found["rank"] == 0
    assert found["weight"] == pytest.approx(slope, abs=0.1)
