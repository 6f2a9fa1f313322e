"""torch.distributed on hosts that come, go and die: all ranks start again from the last checkpoint."""

from __future__ import annotations

import os
import signal

import clusters
import pytest
import torch_scripts
from elastic_jobs import check, reports, sizes, until_size

from estimators import ElasticTorchDistributed, PyTorch, TrainingJob, TrainingJobError
from estimators.client import ipc_client

pytestmark = pytest.mark.torch

#: Each record adds one to its own weight each time that it is trained on, so that the weights are the ledger: what was
#: trained after the last checkpoint is not in the weights that are restored.
LEDGER = (
    torch_scripts.BEGIN
    + """
import os
import aid
from container import distributed
from container.checkpoint import Checkpointer

RECORDS = 18
cluster = distributed.init(framework="torch")
model = cluster.model(torch.nn.Embedding(RECORDS, 1))
torch.nn.init.zeros_(next(model.parameters()))
optimizer = optim.SGD(model.parameters(), lr=float(cluster.size))
loader = cluster.loader(torch.arange(RECORDS), global_batch_size=6, shuffle=True, seed=7)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
checkpointer = Checkpointer(keep=2)
restored = checkpointer.restore(parts)
step = restored.step if restored else 0
for group in optimizer.param_groups:
    group["lr"] = float(cluster.size)
places = cluster.all_reduce([1.0 if number == cluster.rank else 0.0 for number in range(cluster.size)])
assert places == [1.0] * cluster.size, places
enough = False
while not enough:
    for batch in loader:
        optimizer.zero_grad()
        loss = -model(batch).sum()
        (loss * (1.0 if loader.weight else 0.0)).backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            checkpointer.save(parts, epoch=loader.epoch, step=step)
    if cluster.is_chief:
        aid.mark(f"epoch-{loader.epoch}", cluster.size)
    enough = cluster.broadcast_object(os.path.exists(os.path.join(aid.MARKS, "enough")))
checkpointer.close()
counts = next(model.parameters()).detach().flatten().tolist()
aid.report(
    rank=cluster.rank, size=cluster.size, least=min(counts), most=max(counts), epochs=loader.epoch,
    restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]), run=os.environ["TORCHELASTIC_RUN_ID"],
)
"""
)

#: The second of two ranks fails each time, before which the other one waits for it.
FAILS = (
    torch_scripts.BEGIN
    + """
import os

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("start " + os.environ["TORCHELASTIC_RESTART_COUNT"] + " gives up")
dist.all_reduce(torch.ones(1))
"""
)


def trained(make: clusters.Make, job: TrainingJob, size: int) -> None:
    """Wait for a whole epoch at a size, of which all that came before is forgotten."""
    for path in make.marks.glob("epoch-*"):
        path.unlink(missing_ok=True)
    clusters.until(
        lambda: str(size) in [path.read_text() for path in make.marks.glob("epoch-*")], check=lambda: check(job)
    )


def restarts(job: TrainingJob) -> int:
    return sum(event.kind == "restarted" for event in job.record.events())


@pytest.mark.landing
def test_each_record_counts_once_whatever_dies_joins_or_leaves(make: clusters.Make) -> None:
    strategy = ElasticTorchDistributed(max_hosts=3, cooldown=(0.1, 1.0))
    job = make.start(LEDGER, kind=PyTorch, hosts=2, distribution=strategy)
    until_size(job, 2)
    trained(make, job, 2)
    ipc_client.request(job.record, {"op": "kill_rank", "rank": 1})
    clusters.until(lambda: restarts(job) == 1, check=lambda: check(job))
    assert sizes(job) == [2]  # it starts again on its host, with the others
    trained(make, job, 2)
    assert job.add_hosts(1) == ["algo-3"]
    until_size(job, 2, 3)
    trained(make, job, 3)
    # The first host, on which the ranks meet, is lost: the others meet on the next one. Another one comes in its place.
    os.kill(clusters.Snapshot(job).find("toolkit", "algo-1").pid, signal.SIGKILL)
    until_size(job, 2, 3, 2, 3)
    trained(make, job, 3)
    job.remove_host("algo-3")
    until_size(job, 2, 3, 2, 3, 2)
    make.mark("enough")
    job.wait(logs=False)
    found = reports(job)
    assert sorted((one["rank"], one["size"], one["restarts"], one["run"]) for one in found) == [
        (0, 2, 5, job.name), (1, 2, 5, job.name),
    ]  # fmt: skip
    for one in found:
        # How many epochs there were the machine decides: what was trained after a checkpoint is trained again.
        assert one["least"] == one["most"] == one["epochs"] > 0


def test_a_script_that_fails_again_and_again_is_the_cause(make: clusters.Make) -> None:
    strategy = ElasticTorchDistributed(processes_per_host=2, max_restarts=1)
    with pytest.raises(TrainingJobError) as caught:
        make.run(FAILS, kind=PyTorch, distribution=strategy)
    failure = caught.value.failure
    assert failure is not None and failure.rank == 1
    assert failure.message.startswith("ValueError: start 1 gives up")
    assert "the script has failed again after 1 restarts (max_restarts=1)." in failure.hints
