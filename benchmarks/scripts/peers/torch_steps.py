"""Steps of a small model in DistributedDataParallel, timed in blocks: the same for every launcher."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

_WARM_UP = 100


def main() -> None:
    """Train for ``$PEERS_SECONDS``, and write the steps a second of rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(32, 64), torch.randint(10, (32,))
    loss_of = torch.nn.CrossEntropyLoss()

    def steps(count: int) -> float:
        began = time.monotonic()
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
        return time.monotonic() - began

    rate = torch.tensor([_WARM_UP / steps(_WARM_UP)])
    dist.broadcast(rate, 0)
    count = max(_WARM_UP, int(float(rate) * float(os.environ["PEERS_SECONDS"])))
    seconds = steps(count)
    if dist.get_rank() == 0:
        Path(os.environ["PEERS_FOLDER"], "steps").write_text(json.dumps(count / seconds))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
