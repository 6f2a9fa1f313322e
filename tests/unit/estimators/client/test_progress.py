"""How far a job is, from its status, its events and its metrics."""

from __future__ import annotations

from typing import Any

import pytest

from container.contract.wire import Event
from estimators.client.progress import JobProgress
from estimators.records.states import SecondaryStatus


def event(kind: str, at: float = 0.0, *, rank: int | None = 0, attempt: int = 0, **data: Any) -> Event:
    return Event(kind=kind, host="algo-1", time_ns=int(at * 1e9), rank=rank, attempt=attempt, data=data)


def phase(name: str, attempt: int = 0) -> Event:
    return event("phase", attempt=attempt, name=name)


def metric(name: str, value: float, seconds: float = 0.0, rank: int = 0) -> Event:
    return event("metric", seconds, rank=rank, name=name, value=value)


def training(**hyperparameters: Any) -> JobProgress:
    made = JobProgress(hyperparameters, began=0.0)
    made.stand("Training", "")
    return made


def test_stages_follow_the_phases() -> None:
    progress = training()
    assert progress.stage == "launching"
    said = []
    for name in ("toolkit_started", "ranks_started", "imported", "rendezvous", "first_step", "training_ended"):
        progress.take([phase(name), phase(name)])
        said.append(progress.stage)
    assert said == [
        "launching", "importing", "connecting", "preparing the first step", "training", "finishing",
    ]  # fmt: skip


def test_an_installation_is_a_stage_of_the_start() -> None:
    progress = JobProgress({}, began=0.0)
    progress.take([phase("toolkit_started"), phase("installing")])
    assert progress.stage == "installing the requirements"
    progress.stand("Pending", "Waiting for capacity")
    assert progress.stage == "waiting for hosts"
    progress.stand("Training", "")
    progress.take([phase("cluster_ready")])  # after which an elastic job imports
    assert progress.stage == "launching"
    progress.take([phase("imported"), phase("first_step"), phase("installing")])
    assert progress.stage == "training", "another host, which joins the job, installs them"


def test_a_plain_script_runs_from_its_first_line_on() -> None:
    progress = training()
    progress.take([phase("ranks_started")])
    assert progress.stage == "importing" and progress.awaits_output
    progress.printed()
    assert progress.stage == "running" and not progress.awaits_output
    progress.take([metric("accuracy", 0.5)])
    assert progress.stage == "training"


def test_what_is_waited_for_is_said() -> None:
    progress = JobProgress({}, began=0.0)
    progress.stand("Pending", "Waiting for capacity")
    assert progress.stage == "waiting for hosts"
    progress.stand("Pending", "Slurm job 7 is pending, at place 2.")
    assert progress.stage == "waiting for hosts: Slurm job 7 is pending, at place 2"
    for status in SecondaryStatus:
        progress.stand(status.value, "")
        assert progress.stage


def test_a_long_epoch_shows_its_steps_before_it_ends() -> None:
    progress = training()
    progress.take([phase("first_step")])
    progress.take([event("within_epoch", 6.0, epoch=1, epochs=4, step=50, steps=200, seconds=5.0, loss=0.7)])
    assert progress.parts(8.0) == [
        "training", "epoch 1 of 4", "step 50 of 200", "loss 0.7", "about 73 s to go", "10 steps/s", "8 s",
    ]  # fmt: skip
    progress.take([event("steps", 21.0, epoch=1, epochs=4, steps=200, seconds=20.0)])
    progress.take([metric("loss", 0.5, 21.0), metric("epoch", 1, 21.0)])
    assert progress.parts(22.0)[:4] == ["training", "epoch 1 of 4", "loss 0.5", "about 59 s to go"]
    progress.take([event("within_epoch", 27.0, epoch=2, step=60, seconds=6.0)])
    assert progress.parts(27.0)[:4] == ["training", "epoch 2 of 4", "step 60", "loss 0.5"]


@pytest.mark.parametrize("odd", [{"steps": "x"}, {"loss": "bad"}, {"step": None}, {"seconds": "now"}])
def test_an_odd_report_within_an_epoch_is_ignored(odd: dict[str, Any]) -> None:
    progress = training(epochs=4)
    progress.take([phase("first_step"), event("within_epoch", **{"epoch": 1, "step": 3, "seconds": 1.0, **odd})])
    assert progress.parts(2.0) == ["training", "2 s"]


@pytest.mark.parametrize(
    ("line", "epoch", "loss"),
    [
        ("Epoch [2/10], Step [5/100], Loss: 0.4", "epoch 2 of 10", "loss 0.4"),
        ("Epoch 2/10, loss: 0.5, validation loss: 0.9", "epoch 2 of 10", "loss 0.5"),
        ("EPOCH 2 of 10 loss=-0.5 val loss=3", "epoch 2 of 10", "loss -0.5"),
    ],
)
def test_lines_of_other_scripts(line: str, epoch: str, loss: str) -> None:
    progress = training()
    progress.printed()
    progress.read(line, 10.0)
    assert progress.parts(12.0) == ["running", epoch, loss, "12 s"]


def test_epochs_and_losses_of_scripts_that_only_print_them() -> None:
    keras, torch = training(), training()
    for progress in (keras, torch):
        progress.printed()
    for epoch in (1, 2, 3):
        keras.read(f"Epoch {epoch}/10", 10.0 * epoch)
        keras.read("100/100 - 1s - 9ms/step - accuracy: 0.5 - loss: 0.4432 - val_loss: 0.6", 10.0 * epoch + 9)
        torch.read(f"epoch {epoch}/10 loss {1 / epoch:.3f}", 10.0 * epoch)
    assert keras.parts(32.0) == ["running", "epoch 3 of 10", "loss 0.4432", "about 78 s to go", "32 s"]
    assert torch.parts(32.0) == ["running", "epoch 3 of 10", "loss 0.333", "about 68 s to go", "32 s"]
    assert torch.loss == [1.0, 0.5, 0.333]
    torch.take([metric("epoch", 7.0), metric("loss", 0.25)])  # reported values count more
    assert torch.parts(33.0)[:3] == ["training", "epoch 7", "loss 0.25"]


def test_epochs_loss_rate_and_the_time_to_go() -> None:
    progress = training(epochs=10)
    progress.take([phase("first_step"), event("steps", epoch=1, steps=100, seconds=4.0)])
    progress.take([event("steps", rank=1, epoch=1, steps=100, seconds=400.0)])
    assert progress.parts(3.0) == ["training", "25 steps/s", "3 s"]
    for epoch in (1, 2, 3):
        progress.take([metric("accuracy", 0.9), metric("loss", 1 / epoch), metric("epoch", epoch, 10.0 * epoch)])
    progress.take([metric("loss", 77.0, rank=1), metric("samples_per_second", 1.0)])
    assert progress.loss == [1.0, 0.5, 1 / 3]
    assert progress.seconds_left(34.0) == 66.0
    assert progress.parts(34.0) == [
        "training", "epoch 3 of 10", "loss 0.3333", "about 66 s to go", "25 steps/s", "34 s", "accuracy 0.9",
    ]  # fmt: skip
    progress.stand("Uploading", "")
    assert progress.parts(300.0)[0] == "saving the outputs" and progress.parts(300.0)[1] == "5 min 00 s"


def test_steps_are_counted_where_there_are_no_epochs() -> None:
    progress = training(**{"max-steps": 200})
    progress.take([metric("step", 50.0, 5.0), metric("step", 100.0, 10.0)])
    assert progress.parts(10.0) == ["training", "step 100 of 200", "about 10 s to go", "10 s"]
    progress.take([metric("step", 200.0, 20.0)])
    assert progress.seconds_left(20.0) is None


@pytest.mark.parametrize(("epochs", "shown"), [(3, "epoch 1 of 3"), (1, "epoch 1"), (0, "epoch 1")])
def test_keras_tells_how_many_epochs_there_are(epochs: int, shown: str) -> None:
    """An elastic training does not: it calls Keras once an epoch."""
    progress = training()
    progress.take([event("steps", epoch=1, epochs=epochs, steps=10, seconds=1.0), metric("epoch", 1, 1.0)])
    assert shown in progress.parts(2.0)


def test_a_line_that_is_read_before_the_events_of_the_start_counts() -> None:
    progress = training()
    progress.printed()
    progress.take([phase("ranks_started")])
    assert progress.stage == "running"


def test_another_attempt_begins_anew() -> None:
    progress = training(epochs=4)
    progress.take([phase("first_step"), metric("epoch", 1, 1.0), metric("epoch", 2, 2.0)])
    progress.take([phase("toolkit_started", attempt=1)])
    assert progress.seconds_left(3.0) is None


def test_the_curve_does_not_grow() -> None:
    progress = training()
    progress.take([metric("loss", float(number)) for number in range(5000)])
    assert 200 < len(progress.loss) <= 480 and progress.loss[0] == 0.0 and progress.loss[-1] > 4900


def test_an_interrupt_is_all_there_is_to_say() -> None:
    progress = training()
    progress.interrupted = "stopping"
    assert progress.parts(1.0) == ["stopping"]
