"""Real PyTorch under fleetfit's launcher: ranks that train together, that fail, and that only look so."""

from __future__ import annotations

import json
from typing import Any

import clusters
import pytest
import torch_scripts

from estimators import PyTorch, TorchDistributed, TrainingJob, TrainingJobError

pytestmark = pytest.mark.torch

TRAIN = (
    torch_scripts.BEGIN
    + """
import os
from aid import report

dist.init_process_group("gloo")
drawn = torch.rand(1).item()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
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
)

FAILS = (
    torch_scripts.BEGIN
    + """
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("the second rank gives up")
dist.all_reduce(torch.ones(1))
"""
)

#: The second rank does not come to a collective of a group whose calls may take three seconds.
STAYS_AWAY = (
    torch_scripts.BEGIN
    + """
import datetime
from aid import wait_for

dist.init_process_group("gloo")
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=3))
if dist.get_rank() == 1:
    wait_for("nothing", 300)
dist.all_reduce(torch.ones(1), group=group)
"""
)

MUTE = (
    torch_scripts.BEGIN
    + """
dist.init_process_group("gloo")
"""
)


API = (
    torch_scripts.BEGIN
    + """
import sys
from aid import report
from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init(framework="torch")
records = torch.arange(22.0).reshape(11, 2)
model = cluster.model(torch.nn.Linear(2, 1))
optimizer = cluster.optimizer(optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
loader = cluster.loader(records, global_batch_size=4, shuffle=True, seed=3)
checkpointer = Checkpointer()
parts = {"model": model, "optimizer": optimizer, "loader": loader}
restored = checkpointer.restore(parts)
step, seen = restored.step if restored else 0, []
while loader.epoch < 2:
    for batch in loader:
        optimizer.zero_grad()
        (model(batch).square().mean() * loader.weight).backward()
        optimizer.step()
        step, seen = step + 1, seen + ([[loader.epoch, *batch[:, 0].tolist()]] if loader.weight else [])
        checkpointer.save(parts, epoch=loader.epoch, step=step)
        cluster.report(loss=cluster.all_reduce(0.5, op="average"), step=step)
        if step == 2 and not restored:
            checkpointer.wait()
            report(seen=seen)
            if cluster.rank == 1:
                sys.exit("ends in the middle of an epoch")
            cluster.barrier()
checkpointer.close()
cluster.export(model)
weights = [value.tolist() for value in model.parameters()]
report(seen=seen, restored=restored and restored.step, strategy=cluster.strategy, size=cluster.size, weights=weights)
"""
)

APART = (
    torch_scripts.BEGIN
    + """
from container import distributed

cluster = distributed.init()
model = torch.nn.Linear(2, 1)
optimizer = cluster.optimizer(optim.SGD(model.parameters(), lr=0.1))
model(torch.rand(3, 2)).mean().backward()
optimizer.step()
"""
)


def events(job: TrainingJob, kind: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (job.record.path / "events.jsonl").read_text().splitlines())
    return [line["data"] for line in lines if line["kind"] == kind]


@pytest.mark.landing
def test_hosts_train_one_model(make: clusters.Make) -> None:
    job = make.run(TRAIN, kind=PyTorch, hosts=2, distribution={"torch_distributed": {"enabled": True}})
    found = clusters.reports(job)
    first, second = found[0], found[1]
    assert (first["rank"], second["rank"], first["size"]) == (0, 1, 2)
    assert first["weights"] == second["weights"]
    assert first["drawn"] != second["drawn"]  # though each was forked from a process that had imported torch
    assert [told.get("refused") for told in events(job, "importer")] == [None, None]
    assert [told["imported"] for told in events(job, "importer")] == [
        ["torch", "torch._dynamo", "torch.distributed"]
    ] * 2
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


def test_a_collective_that_a_rank_does_not_come_to_is_named(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError, match="all_reduce timed out after 3 s: another rank took no part") as caught:
        make.run(STAYS_AWAY, kind=PyTorch, distribution=TorchDistributed(processes_per_host=2))
    failure = caught.value.failure
    assert failure is not None and failure.rank == 0
    assert failure.hints and "hang_timeout=" in failure.hints[0]


def test_ranks_that_exchange_nothing(make: clusters.Make) -> None:
    job = make.run(MUTE, kind=PyTorch, distribution=TorchDistributed(processes_per_host=2))
    (warning,) = job.result().warnings
    assert "its 2 ranks joined each other (torch.distributed) and then exchanged nothing" in warning


def test_a_restart_goes_on_within_the_epoch(make: clusters.Make) -> None:
    job = make.run(API, kind=PyTorch, distribution=TorchDistributed(processes_per_host=2), max_retry_attempts=1)
    lines = [json.loads(line.text[7:]) for line in job.log_lines() if line.text.startswith("report ")]
    ends = [line for line in lines if "weights" in line]
    assert [(end["restored"], end["strategy"], end["size"]) for end in ends] == [(2, "torch_distributed", 2)] * 2
    assert ends[0]["weights"] == ends[1]["weights"]
    seen = [step for line in lines for step in line["seen"]]
    for epoch in (0, 1):  # what both ranks saw before and after the restart, each record once
        records = [record for number, *batch in seen if number == epoch for record in batch]
        assert sorted(records) == [2.0 * number for number in range(11)]
    assert job.metrics()["name"].tolist().count("loss") == 2 * 6 and job.model_data is not None


def test_ranks_that_train_apart_are_noticed(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError, match="the weights of the 2 ranks should be equal, but differ after step 1"):
        make.run(APART, kind=PyTorch, hosts=2, distribution=TorchDistributed())
