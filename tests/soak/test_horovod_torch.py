"""Horovod for PyTorch: under mpirun, and the elastic script of an article as it stands. `make soak` builds it."""

from __future__ import annotations

import os
import signal

import clusters
import pytest
from elastic_jobs import check, sizes, until_size

from estimators import MPI, ElasticHorovod, PyTorch, TrainingJob

pytestmark = [pytest.mark.soak, pytest.mark.horovod, pytest.mark.torch]

TRAIN = """
import torch
from aid import report
from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init(framework="torch")
torch.manual_seed(cluster.rank)  # so that they would differ if nobody brought them together
records = torch.arange(22.0).reshape(11, 2) / 22
model = cluster.model(torch.nn.Linear(2, 1))
optimizer = cluster.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
loader = cluster.loader(records, global_batch_size=4, shuffle=True, seed=3)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
checkpointer = Checkpointer()
step = 0
while loader.epoch < 3:
    for batch in loader:
        optimizer.zero_grad()
        (model(batch).square().mean() * loader.weight).backward()
        optimizer.step()
        step += 1
    checkpointer.save(parts, epoch=loader.epoch, step=step)
checkpointer.close()
cluster.barrier()
assert cluster.broadcast_object(cluster.rank) == 0
report(
    strategy=cluster.strategy, size=cluster.size, ranks=cluster.all_reduce(float(cluster.rank)),
    weights=[value.tolist() for value in model.parameters()],
)
"""

#: That of an article on elastic training with spot instances of EC2; not a line is changed.
ARTICLE = """
import torch
import horovod.torch as hvd
import torchvision.models as models
import torch.nn as nn
import torch.optim as optim
hvd.init()
torch.cuda.set_device(hvd.local_rank())
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
lr = 0.001
model = models.resnet50(pretrained=True)
model.to(device)
loss_optim = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
def get_random_batch():
    batch_size = 2
    data_in = torch.rand(batch_size, 3, 64, 64).to(device)
    target = torch.zeros(batch_size).long().to(device)
    return data_in, target
# training loop must be wrapped by @hvd.elastic.run
@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 100):
        print("Epoch", state.epoch)
        for state.batch in range(state.batch, 100):
            data, target = get_random_batch()
            optimizer.zero_grad()
            output = model(data)
            loss = loss_optim(output, target)
            loss.backward()
            optimizer.step()
        # commit the state at the end of each epoch
        # see documentation for how to choose frequency of 'commit'
        state.commit()
        state.batch = 0
def on_state_reset():
    # adjust learning rate on reset
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr * hvd.size()
# state object tracks and synchronizes state among the workers
state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
"""

#: In torchvision's place, which would download weights: a model of one layer. It also lets the script's GPU be absent.
MODELS = """
import time
import torch

torch.cuda.set_device = lambda device: None


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 10)

    def forward(self, images):
        time.sleep(0.005)
        return self.layer(images.mean((2, 3)))


def resnet50(pretrained):
    return Layer()
"""


def epochs(job: TrainingJob, host: str) -> list[int]:
    """The epochs that a host's worker has begun."""
    return [int(line.text[6:]) for line in job.log_lines() if line.host == host and line.text.startswith("Epoch ")]


def test_ranks_of_mpirun_train_one_model(make: clusters.Make) -> None:
    job = make.run(TRAIN, kind=PyTorch, hosts=2, distribution=MPI(processes_per_host=1))
    first, second = (clusters.reports(job)[rank] for rank in (0, 1))
    assert (first["strategy"], first["size"], first["ranks"]) == ("mpi", 2, 1.0)
    assert first["weights"] == second["weights"]
    assert job.result().warnings == ()


def test_the_articles_script_survives_the_loss_of_its_first_host(make: clusters.Make) -> None:
    files = {"torchvision/__init__.py": "", "torchvision/models.py": MODELS}
    strategy = ElasticHorovod(max_hosts=3, cooldown=(0.1, 1.0))
    job = make.start(ARTICLE, kind=PyTorch, hosts=2, files=files, distribution=strategy)
    until_size(job, 2)
    clusters.until(lambda: "Epoch 2" in clusters.all_text(job), check=lambda: check(job))
    os.kill(clusters.Snapshot(job).find("toolkit", "algo-1").pid, signal.SIGKILL)
    until_size(job, 2, 1, 2)  # the host is replaced by another, with a name of its own
    assert job.add_hosts(1) == ["algo-4"]
    until_size(job, 2, 1, 2, 3)
    # All three train on together, from what the one that was left had: nobody begins at the beginning.
    reached = max(epochs(job, host)[-1] for host in ("algo-2", "algo-3"))
    for host in ("algo-2", "algo-3", "algo-4"):
        clusters.until(lambda host=host: reached + 2 in epochs(job, host), check=lambda: check(job))
        assert host == "algo-2" or epochs(job, host)[0] >= 1
    assert sorted(set(epochs(job, "algo-2"))) == list(range(epochs(job, "algo-2")[-1] + 1))
    job.stop(wait=True)
    assert sizes(job) == [2, 1, 2, 3]
