"""Train a digits classifier with PyTorch, with torch.distributed or in one process.

The job's ``distribution`` selects the strategy. The code does not depend on the strategy. The script also runs without
a job: with ``torchrun --nproc-per-node 2 entrypoints/train_torch.py``, or in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from container import distributed
from container.checkpoint import Checkpointer
from container.formats import example, tfrecord

CLASSES = 10


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="number of records in one step of all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("SM_CHECKPOINT_DIR"),
        help="folder of the checkpoints (default: SM_CHECKPOINT_DIR, or no checkpoints if it is not set)",
    )
    return parser.parse_args(arguments)


def read(folder: Path) -> torch.utils.data.TensorDataset:
    """Return the images and labels of a channel. Shapes: (records, 1, 8, 8); (records,)."""
    files = sorted(folder.glob("*.tfrecord"))
    if not files:
        raise SystemExit(f"{folder} has no *.tfrecord files. To make some, run entrypoints/prepare_digits.py")
    records = [example.decode(record) for file in files for record in tfrecord.read(file)]
    images = torch.tensor([record["image"] for record in records]).reshape(-1, 1, 8, 8)
    return torch.utils.data.TensorDataset(images, torch.tensor([record["label"][0] for record in records]))


def make_model() -> torch.nn.Module:
    """Return the network of ``train.py``. Input shape: (batch, 1, 8, 8); output: (batch, 10) logits."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 3 * 3, 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def main(options: argparse.Namespace) -> None:
    """Train, and save the model and the checkpoints in SageMaker's folders."""
    cluster = distributed.init(framework="torch")
    torch.manual_seed(options.seed)
    loss_of = torch.nn.CrossEntropyLoss()
    model = cluster.model(make_model())
    optimizer = cluster.optimizer(torch.optim.Adam(model.parameters(), lr=cluster.scale(options.learning_rate)))
    loader = cluster.loader(read(options.train), global_batch_size=options.batch_size, shuffle=True, seed=options.seed)
    validation = read(options.validation)

    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    checkpointer = Checkpointer(options.checkpoint_dir) if options.checkpoint_dir else None
    restored = checkpointer.restore(parts) if checkpointer is not None else None
    step = restored.step if restored is not None else 0

    while loader.epoch < options.epochs:
        model.train()
        total = records = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images.to(cluster.device)), labels.to(cluster.device))
            (loss * loader.weight).backward()
            optimizer.step()
            step += 1
            if loader.weight:
                total, records = total + loss.item() * len(labels), records + len(labels)
        total, records = cluster.all_reduce([total, records])
        accuracy = evaluate(cluster, model, validation)
        if cluster.is_chief:
            mean = total / max(records, 1)
            print(f"epoch {loader.epoch} - loss: {mean:.4f} - val_accuracy: {accuracy:.4f}", flush=True)
            cluster.report(loss=mean, val_accuracy=accuracy, epoch=loader.epoch, step=step)
        if checkpointer is not None:
            checkpointer.save(parts, epoch=loader.epoch, step=step, metrics={"val_accuracy": accuracy})
    if checkpointer is not None:
        checkpointer.close()
    if os.environ.get("SM_MODEL_DIR"):
        file = cluster.export(model)
        if file is not None:
            print(f"model: {file}", flush=True)


@torch.no_grad()
def evaluate(cluster: distributed.TorchCluster, model: torch.nn.Module, records: torch.utils.data.Dataset) -> float:
    """Return the accuracy, from 0 to 1, over all records. Each rank evaluates its own part of the records.

    All ranks must call this function.
    """
    model.eval()
    images, labels = records[cluster.rank :: cluster.size]
    right = (model(images.to(cluster.device)).argmax(1) == labels.to(cluster.device)).sum()
    return float(cluster.all_reduce(right) / len(records))


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
