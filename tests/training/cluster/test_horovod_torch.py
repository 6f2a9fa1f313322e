"""Horovod for PyTorch: under mpirun, and the elastic script and command of an article as they stand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import clusters
import horovod_torch
import pytest
from elastic_jobs import check, reports, sizes, trained, until_size
from horovod_torch import ARTICLE, FILES, ONE_THREAD, epochs, until_epoch

from container.system.host_machine import cpu_count
from estimators import MPI, ElasticHorovod, PyTorch, TrainingJob, TrainingJobError

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.torch,
    pytest.mark.skipif("torch" not in horovod_torch.BUILT, reason=horovod_torch.WITHOUT),
]

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
checkpointer.wait()
trained = [value.tolist() for value in model.parameters()]
with torch.no_grad():
    model.bias.zero_()
assert checkpointer.restore(parts).epoch == loader.epoch == 3
assert [value.tolist() for value in model.parameters()] == trained
checkpointer.close()
cluster.barrier()
assert cluster.broadcast_object(None if cluster.rank else {"rank": 0}) == {"rank": 0}
report(
    strategy=cluster.strategy, size=cluster.size, ranks=cluster.all_reduce(float(cluster.rank)),
    threads=torch.get_num_threads(),
    weights=[value.tolist() for value in model.parameters()],
)
"""

#: Under mpirun its ranks change their weights after seven steps; its elastic state has no model.
APART = """
import torch
import aid
from container import distributed

cluster = distributed.init(framework="torch")
import horovod.torch as hvd

model = cluster.model(torch.nn.Linear(2, 1))
optimizer = cluster.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

def train(state):
    for step in range(10):
        if state is None and step == 7:
            with torch.no_grad():
                model.weight[0, 0] += cluster.rank
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()

if cluster.strategy == "mpi":
    train(None)
else:
    hvd.elastic.run(train)(hvd.elastic.TorchState(optimizer=optimizer))
"""

#: The command of the article.
COMMAND = "horovodrun -np 2 --min-np 1 --max-np 3 --host-discovery-script discover_hosts.sh --slots 1 python train.py"

#: Each step adds one to the weights of its records, whichever ranks make it: these count how often each was trained on.
SAMPLER = """
import os, time
import aid
import torch
import horovod.torch as hvd

hvd.init()
RECORDS, RATE = 120, 0.01
sampler = hvd.elastic.ElasticSampler(range(RECORDS), shuffle=True)
loader = torch.utils.data.DataLoader(range(RECORDS), batch_size=4, sampler=sampler)
model = torch.nn.ModuleDict({"counts": torch.nn.Embedding(RECORDS, 1), "other": torch.nn.Linear(1, 1)})
torch.nn.init.zeros_(model["counts"].weight)
groups = [
    {"params": model["counts"].parameters(), "lr": 1.0},
    {"params": model["other"].parameters(), "lr": RATE * hvd.size()},
]
optimizer = torch.optim.SGD(groups)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

def on_state_reset():
    optimizer.param_groups[1]["lr"] = RATE * hvd.size()

state.register_reset_callbacks([on_state_reset])

@hvd.elastic.run
def train(state):
    enough = False
    while not enough:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            (model["other"](torch.ones(1, 1)).square().sum() / 100 - model["counts"](batch).sum()).backward()
            optimizer.step()
            state.sampler.record_batch(number, 4)
            time.sleep(0.02)
            if number % 5 == 4:
                state.commit()
        assert optimizer.param_groups[1]["lr"] == RATE * hvd.size()
        aid.mark(f"epoch-{state.epoch}", hvd.size())
        enough = hvd.broadcast_object(os.path.exists(os.path.join(aid.MARKS, "enough")), 0)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()

train(state)
counts = model["counts"].weight.detach()
aid.report(epochs=state.epoch, least=float(counts.min()), mean=float(counts.mean()))
"""


#: The records count as above, by our loader, which deals each of them once. Every fifth step is kept, and so an epoch's
#: last one. The other weights decay.
ELASTIC = """
import os, time
import aid
import torch
from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init()  # before it has a rank
import horovod.torch as hvd

RECORDS, BATCH = 120, 12
torch.manual_seed(cluster.rank)  # so that they would differ if nobody brought them together
module = torch.nn.ModuleDict({"counts": torch.nn.Embedding(RECORDS, 1), "other": torch.nn.Linear(1, 1)})
if cluster.rank == 0:
    torch.nn.init.zeros_(module["counts"].weight)
model = cluster.model(module)
groups = [
    {"params": module["counts"].parameters(), "lr": float(BATCH)},
    {"params": module["other"].parameters(), "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
]
optimizer = cluster.optimizer(torch.optim.SGD(groups))
loader = cluster.loader(range(RECORDS), global_batch_size=BATCH, shuffle=True, seed=7)
state = hvd.elastic.TorchState(model, optimizer, loader=loader, step=0)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
checkpointer = Checkpointer(keep=1)

@hvd.elastic.run
def train(state):
    enough = False
    while not enough:
        for batch in loader:
            optimizer.zero_grad()
            other = model["other"](torch.ones(1, 1)).square().sum()
            (other / 100 - model["counts"](batch).mean() * loader.weight).backward()
            optimizer.step()
            state.step += 1
            time.sleep(0.02)
            if state.step % 5 == 0:
                state.commit()
        checkpointer.save(parts, epoch=loader.epoch, step=state.step)
        aid.mark(f"epoch-{loader.epoch}", cluster.size)
        cluster.report(size=cluster.size)
        enough = os.path.exists(os.path.join(aid.MARKS, "enough")) if cluster.is_chief else None
        enough = cluster.broadcast_object(enough)
    checkpointer.wait()
    trained = module["counts"].weight.detach().clone()
    torch.nn.init.zeros_(module["counts"].weight)
    checkpointer.restore(parts)
    assert torch.equal(module["counts"].weight, trained)

train(state)
cluster.check_weights(model)
counts = module["counts"].weight.detach()
aid.report(
    strategy=cluster.strategy, epochs=loader.epoch, least=round(float(counts.min()), 3),
    most=round(float(counts.max()), 3), size=cluster.size,
)
"""


def test_ranks_of_mpirun_train_one_model(make: clusters.Make) -> None:
    job = make.run(TRAIN, kind=PyTorch, hosts=2, distribution=MPI(processes_per_host=1))
    first, second = (clusters.reports(job)[rank] for rank in (0, 1))
    assert (first["strategy"], first["size"], first["ranks"]) == ("mpi", 2, 1.0)
    assert first["weights"] == second["weights"]
    if make.instance_type == "local_process":  # both are on this machine
        assert first["threads"] == second["threads"] == max(1, cpu_count() // 2)
    assert job.result().warnings == ()


@pytest.mark.parametrize(
    ("distribution", "step"), [(MPI(processes_per_host=1), 8), (ElasticHorovod(), 1)], ids=["mpi", "elastic"]
)
def test_ranks_that_train_apart_fail(make: clusters.Make, distribution: MPI | ElasticHorovod, step: int) -> None:
    with pytest.raises(
        TrainingJobError, match=f"weights of the 2 ranks should be equal, but differ after step {step}\\."
    ):
        make.run(APART, kind=PyTorch, hosts=2, distribution=distribution)


def test_steps_outside_of_an_elastic_state_are_refused(make: clusters.Make) -> None:
    script = APART.replace("hvd.elastic.run(train)(hvd.elastic.TorchState(optimizer=optimizer))", "train(0)")
    with pytest.raises(TrainingJobError, match="the ranks are not connected yet, and would train separately"):
        make.run(script, kind=PyTorch, hosts=2, distribution=ElasticHorovod())


def test_the_articles_script_trains_under_mpi(make: clusters.Make) -> None:
    strategy = MPI(processes_per_host=1)
    job = make.start(ARTICLE, kind=PyTorch, hosts=2, files=FILES, distribution=strategy, environment=ONE_THREAD)
    until_epoch(job, 1, "algo-1", "algo-2")
    job.stop(wait=True)
    assert job.status == "Stopped"


def write_discovery(folder: Path, *hosts: str) -> None:
    """Have the article's script name these hosts."""
    (folder / "new").write_text("".join(f"{host}\n" for host in hosts))
    os.replace(folder / "new", folder / "hosts")
    script = folder / "discover_hosts.sh"
    if not script.exists():
        script.write_text(f"#!/bin/bash\ncat '{folder}/hosts'\n")
        script.chmod(0o755)


@contextlib.contextmanager
def horovodrun(folder: Path, home: Path) -> Iterator[tuple[subprocess.Popen[bytes], TrainingJob]]:
    """The article's command, as it is typed there, and the job that it becomes."""
    command = [str(Path(sys.executable).with_name("fleetfit")), *COMMAND.split()]
    with (folder / "output").open("wb") as output:
        env = {**os.environ, **ONE_THREAD}
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            jobs = "jobs/[!.]*/request.json"  # a record that is being made has a name with a dot
            clusters.until(lambda: list(home.glob(jobs)) or process.poll() is not None)
            assert process.poll() is None, (folder / "output").read_text()
            [request] = home.glob(jobs)
            yield process, TrainingJob.attach(request.parent.name)
        finally:
            process.kill()
            process.wait()


def test_the_articles_command_adds_a_host_and_loses_the_first(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "work"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_discovery(folder, "10.0.1.20", "10.0.1.21")
    with horovodrun(folder, home) as (process, job):
        until_size(job, 2)
        until_epoch(job, 1, "algo-1", "algo-2")
        write_discovery(folder, "10.0.1.20", "10.0.1.21", "10.0.1.22")
        until_size(job, 2, 3)
        until_epoch(job, 2, "algo-1", "algo-2", "algo-3")
        os.kill(clusters.Snapshot(job).find("toolkit", "algo-1").pid, signal.SIGKILL)
        write_discovery(folder, "10.0.1.21", "10.0.1.22")
        until_size(job, 2, 3, 2)
        reached = max(epochs(job, host)[-1] for host in ("algo-2", "algo-3"))
        until_epoch(job, reached + 2, "algo-2", "algo-3")
        # Nobody has begun at the beginning: the second host has made all epochs, the third those since it came.
        made = set(epochs(job, "algo-2"))
        assert made == set(range(max(made) + 1))
        assert epochs(job, "algo-3")[0] >= 1
        process.send_signal(signal.SIGINT)
        clusters.until(lambda: process.poll() is not None)
        shown = (folder / "output").read_text()
    assert job.status == "Stopped" and sizes(job) == [2, 3, 2], shown
    assert "algo-1 is at 10.0.1.20\n" in shown and "algo-2 is at 10.0.1.21\n" in shown
    assert "algo-3 is being added at 10.0.1.22\n" in shown


def train_while_hosts_change(make: clusters.Make, script: str) -> TrainingJob:
    """Run a script on two hosts, add one, and kill the first, for which another one comes."""
    strategy = ElasticHorovod(max_hosts=3, cooldown=(0.1, 1.0))
    job = make.start(script, kind=PyTorch, hosts=2, distribution=strategy, environment=ONE_THREAD)
    until_size(job, 2)
    trained(make, job, 2)
    assert job.add_hosts(1) == ["algo-3"]
    until_size(job, 2, 3)
    trained(make, job, 3)
    os.kill(clusters.Snapshot(job).find("toolkit", "algo-1").pid, signal.SIGKILL)
    # Where the other host is there when the loss is noticed, the size does not change.
    clusters.until(lambda: sizes(job) in ([2, 3, 2, 3], [2, 3, 3]), check=lambda: check(job))
    trained(make, job, 3)
    make.mark("enough")
    job.wait(logs=False)
    return job


def test_our_loader_has_each_record_once_in_each_epoch_while_hosts_change(make: clusters.Make) -> None:
    job = train_while_hosts_change(make, ELASTIC)
    found = [(one["strategy"], one["size"], one["least"], one["most"], one["epochs"]) for one in reports(job)]
    assert len(found) == 3 and len(set(found)) == 1, found
    [(strategy, size, least, most, epochs_made)] = set(found)
    assert (strategy, size) == ("elastic_horovod", 3)
    assert least == most == epochs_made
    told = [event for event in job.record.events("metric") if event.data["name"] == "size"]
    ranks = {(event.rank, event.data["value"]) for event in told}
    assert {(rank, size) for size in (2.0, 3.0) for rank in range(int(size))} <= ranks


def test_a_sampler_has_each_record_in_each_epoch_and_the_rate_follows_the_ranks(make: clusters.Make) -> None:
    job = train_while_hosts_change(make, SAMPLER)
    found = [(one["epochs"], one["least"], one["mean"]) for one in reports(job)]
    assert len(found) == 3 and len(set(found)) == 1
    # None is left out; the sampler fills up the last turn of a share that does not come out even.
    [(epochs_made, least, mean)] = set(found)
    assert epochs_made <= least and mean < epochs_made + 0.5
