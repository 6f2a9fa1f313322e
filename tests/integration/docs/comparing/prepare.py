from estimators import TensorFlow

_digits = {"train": "data/digits/train", "validation": "data/digits/validation"}


def _digits_with(batch_size):
    return TensorFlow(
        entry_point="train.py",
        source_dir="entrypoints",
        instance_type="local_process",
        hyperparameters={"epochs": 2, "batch-size": batch_size},
    )


job = _digits_with(64).fit(_digits, job_name="digits-1")
_digits_with(128).fit(_digits, job_name="digits-2")

_losses = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
estimator_1 = TensorFlow(
    entry_point="train.py", instance_type="local_process", instance_count=2, metric_definitions=_losses,
    distribution={"mpi": {"enabled": True}},
)  # fmt: skip
estimator_2 = TensorFlow(
    entry_point="train.py", instance_type="local_process", instance_count=2, metric_definitions=_losses,
)  # fmt: skip
inputs = None
