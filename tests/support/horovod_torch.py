"""The elastic script of an article, which is PyTorch's, and what tests of it share."""

from __future__ import annotations

import sys

import clusters
from elastic_jobs import check

from container.launchers import horovod_builds
from estimators import TrainingJob

#: The frameworks that this Python's Horovod is built for.
BUILT = horovod_builds.built_for(sys.path)
#: Why tests of Horovod with PyTorch are skipped.
WITHOUT = "Horovod is built without PyTorch; `make test-all` builds it with both"

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

#: Ranks that share a machine's cores, as here, wait for each other's threads otherwise.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

#: What lies beside it.
FILES = {"train.py": ARTICLE, "torchvision/__init__.py": "", "torchvision/models.py": MODELS}


def epochs(job: TrainingJob, host: str) -> list[int]:
    """The epochs that a host's worker has begun."""
    return [int(line.text[6:]) for line in job.log_lines() if line.host == host and line.text.startswith("Epoch ")]


def until_epoch(job: TrainingJob, number: int, *hosts: str) -> None:
    for host in hosts:
        clusters.until(lambda host=host: number <= max(epochs(job, host), default=-1), check=lambda: check(job))
