"""Scripts for PyTorch that know nothing of fleetfit: sharded parameters, and checkpoints of PyTorch's own."""

from __future__ import annotations

import json

import clusters
import pytest
from elastic_jobs import check, until_size

from estimators import ElasticTorchDistributed, PyTorch

pytestmark = [pytest.mark.soak, pytest.mark.torch]

#: Saves where it is with torch.distributed.checkpoint, which each number of ranks can restore.
SHARDED = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import aid

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 12, bias=False), torch.nn.Linear(12, 1, bias=False))
for layer in (*model, model):
    fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
folder = os.environ["SM_CHECKPOINT_DIR"]
newest = os.path.join(folder, "newest")
step = int(open(newest).read()) if os.path.exists(newest) else 0


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"weights": weights, "moments": moments}


if step:
    found = state()
    dcp.load(found, checkpoint_id=os.path.join(folder, str(step)))
    set_state_dict(model, optimizer, model_state_dict=found["weights"], optim_state_dict=found["moments"])
norm = sum(float(value.full_tensor().square().sum()) for value in model.parameters())
print("from", step, "of", size, norm, flush=True)
enough = torch.zeros(1)
while not enough:
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()
        step += 1
    dcp.save(state(), checkpoint_id=os.path.join(folder, str(step)))
    norm = sum(float(value.full_tensor().square().sum()) for value in model.parameters())
    if rank == 0:
        print("at", step, norm, flush=True)
        with open(newest + ".new", "w") as file:
            file.write(str(step))
        os.replace(newest + ".new", newest)
        aid.mark(f"trained-{size}")
    enough += os.path.exists(os.path.join(aid.MARKS, "enough"))
    dist.broadcast(enough, 0)
dist.destroy_process_group()
"""


def test_sharded_parameters_and_distributed_checkpoints_on_hosts_that_come_and_go(make: clusters.Make) -> None:
    job = make.start(SHARDED, kind=PyTorch, hosts=2, distribution=ElasticTorchDistributed(max_hosts=3))
    until_size(job, 2)
    for size, change in ((2, lambda: job.add_hosts(1)), (3, lambda: job.remove_host("algo-1"))):
        clusters.until((make.marks / f"trained-{size}").exists, check=lambda: check(job))
        change()
    until_size(job, 2, 3, 2)
    make.mark("enough")
    job.wait(logs=False)
    lines = [line.text.split() for line in job.log_lines() if line.text.startswith(("from ", "at "))]
    saved = {int(words[1]): float(words[2]) for words in lines if words[0] == "at"}
    begun = [(int(words[1]), int(words[3]), float(words[4])) for words in lines if words[0] == "from"]
    assert {size for _, size, _ in begun} == {2, 3} and len(begun) == 2 + 3 + 2, json.dumps(lines)
    restored = [(step, norm) for step, _, norm in begun if step]
    assert len(restored) == 5
    for step, norm in restored:
        assert norm == pytest.approx(saved[step], rel=1e-5)
