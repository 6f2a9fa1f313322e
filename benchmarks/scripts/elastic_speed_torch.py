"""Trainings of PyTorch by Horovod's own elastic state, that say of each epoch how fast its steps were."""

from __future__ import annotations

import os

import horovod.torch as hvd
import torch
from epoch_timer import EpochTimer, parse_arguments

BATCH = 32


def main() -> None:
    """Train, once for each interval of commits."""
    options = parse_arguments()

    hvd.init()
    torch.set_num_threads(1)
    (options.folder / f"rank-{hvd.rank()}").write_text(str(os.getpid()))
    if hvd.rank() == 0:
        (options.folder / "threads").write_text(str(torch.get_num_threads()))
    timer = EpochTimer(options.folder, steps=options.steps, chief=hvd.rank() == 0, held=bool(options.held))
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    wanted = torch.ones(BATCH, 10)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState, every: int) -> None:
        commit = timer.timed(type(state).commit)
        while state.epoch < options.epochs:
            for step in range(options.steps):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(torch.full((BATCH, 256), float(step % 7))), wanted).backward()
                optimizer.step()
                if (step + 1) % every == 0:
                    commit(state)
                timer.on_train_batch_end(step)
            timer.on_epoch_end(state.epoch)
            state.epoch += 1

    for every in (int(word) for word in options.commit_every.split("+")):
        train(hvd.elastic.TorchState(model, optimizer, epoch=0), every or options.steps)


if __name__ == "__main__":
    main()
