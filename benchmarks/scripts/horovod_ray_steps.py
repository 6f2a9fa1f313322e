"""The small training under Horovod's own executor for Ray: two workers, whose number is fixed."""

import runpy
import sys

import ray
from horovod.ray import RayExecutor

address, folder, script = sys.argv[1:]


def train(path):  # type: ignore[no-untyped-def]
    """Be a worker."""
    runpy.run_path(path, run_name="__main__")


ray.init(address, log_to_driver=False)
executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_hosts=2, num_workers_per_host=1)
executor.start(extra_env_vars={"STEPS_FOLDER": folder, "STEPS_ELASTIC": "0"})
try:
    executor.run(train, args=[script])
finally:
    executor.shutdown()
