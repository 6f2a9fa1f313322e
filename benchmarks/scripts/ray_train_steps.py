"""A training of Ray Train's that writes when each step ended; elastic, with checkpoints as that needs them there."""

import os
import sys
import tempfile
import time

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

import ray
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

address, folder, least, most, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])


def loop(config):  # type: ignore[no-untyped-def]
    """Steps of 20 ms, with a checkpoint every half a second."""
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    path = os.path.join(config["folder"], f"steps-{os.getpid()}-{size}")
    with open(path, "a", buffering=1) as steps:
        number = 0
        while True:
            time.sleep(0.02)
            number += 1
            steps.write(f"{time.time_ns()} {size} {rank} {os.getpid()} {number}\n")
            if number % 25 == 0:
                ended = os.path.exists(os.path.join(config["folder"], "enough"))
                with tempfile.TemporaryDirectory() as saved:
                    with open(os.path.join(saved, "number"), "w") as file:
                        file.write(str(number))
                    checkpoint = train.Checkpoint.from_directory(saved) if rank == 0 else None
                    train.report({"number": number}, checkpoint=checkpoint)
                if ended:
                    return


ray.init(address, log_to_driver=False)
trainer = DataParallelTrainer(
    loop,
    train_loop_config={"folder": folder},
    scaling_config=train.ScalingConfig(
        num_workers=(least, most) if least != most else most,
        resources_per_worker={"CPU": 1, "slot": 1},
        elastic_resize_monitor_interval_s=every,
    ),
    run_config=train.RunConfig(
        storage_path=os.path.join(folder, "storage"), failure_config=train.FailureConfig(max_failures=-1)
    ),
)
trainer.fit()
