"""Real PyTorch under fleetfit's launcher: ranks that train together, that fail, and that only look so."""

from __future__ import annotations

import json
from typing import Any

import clusters
import pytest

from estimators import PyTorch, TorchDistributed, TrainingJob, TrainingJobError

pytestmark = pytest.mark.torch

TRAIN = """
import os
import torch
import torch.distributed as dist
from aid import report

dist.init_process_group("gloo")
drawn = torch.rand(1).item()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((8, 4), float(dist.get_rank()))).mean().backward()
    optimizer.step()
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
report(
    rank=dist.get_rank(), size=dist.get_world_size(), drawn=drawn, weights=model.module.weight.flatten().tolist(),
    environment={name: os.environ[name] for name in names},
)
"""

FAILS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("the second rank gives up")
dist.all_reduce(torch.ones(1))
"""

MUTE = """
import torch.distributed as dist

dist.init_process_group("gloo")
"""


def events(job: TrainingJob, kind: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (job.record.path / "events.jsonl").read_text().splitlines())
    return [line["data"] for line in lines if line["kind"] == kind]


def test_hosts_train_one_model(make: clusters.Make) -> None:
    job = make.run(TRAIN, kind=PyTorch, hosts=2, distribution={"torch_distributed": {"enabled": True}})
    found = clusters.reports(job)
    first, second = found[0], found[1]
    assert (first["rank"], second["rank"], first["size"]) == (0, 1, 2)
    assert first["weights"] == second["weights"]
    assert first["drawn"] != second["drawn"]  # though each was forked from a process that had imported torch
    assert [told.get("refused") for told in events(job, "importer")] == [None, None]
    assert [told["imported"] for told in events(job, "importer")] == [["torch", "torch.distributed"]] * 2
    assert second["environment"] == {
        "RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": job.name,
    }  # fmt: skip
    assert job.result().warnings == ()


def test_the_first_failure_is_the_cause(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(FAILS, kind=PyTorch, distribution=TorchDistributed(processes_per_host=2))
    failure = caught.value.failure
    assert failure is not None and (failure.rank, failure.message.partition(" (")[0]) == (
        1, "ValueError: the second rank gives up",
    )  # fmt: skip


def test_ranks_that_exchange_nothing(make: clusters.Make) -> None:
    job = make.run(MUTE, kind=PyTorch, distribution=TorchDistributed(processes_per_host=2))
    (warning,) = job.result().warnings
    assert "its 2 ranks joined each other (torch.distributed) and then exchanged nothing" in warning
