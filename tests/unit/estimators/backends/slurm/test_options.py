"""What a job may ask of Slurm."""

from __future__ import annotations

import json
import math
import sys
import time

import pytest
import waiting

from estimators.backends.slurm import keeper
from estimators.backends.slurm.options import SlurmOptions, minutes
from estimators.job.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:30", 90.5),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("1-12:30", 2190),
        ("1-00:00:30", 1440.5),
        ("UNLIMITED", math.inf),
        ("soon", None),
        ("", None),
        ("1:2:3:4", None),
    ],
)
def test_limits_are_read_as_slurm_writes_them(text: str, expected: float | None) -> None:
    assert minutes(text) == expected


def test_without_options_whole_nodes_of_the_default_partition_are_asked_for() -> None:
    made = SlurmOptions.of({})
    assert made.python == sys.executable and made.partition is None
    assert made.words(3) == [
        "--nodes=3", "--ntasks-per-node=1", "--export=NIL", "--no-kill", "--exclusive", "--no-requeue"
    ]  # fmt: skip


def test_options_become_sbatchs_words() -> None:
    texts = {"partition": "gpu", "account": "lab", "qos": "high", "gres": "gpu:2", "constraint": "a100&nvlink"}
    others = {"cpus_per_task": 8, "time": 90, "requeue": True, "signal": "TERM@120", "sbatch": ["--wckey=x"]}
    words = SlurmOptions.of({**texts, **others}).words(1)
    assert words[0] == "--nodes=1" and words[-1] == "--wckey=x"
    assert {f"--{name}={text}" for name, text in texts.items()} <= set(words)
    assert {"--cpus-per-task=8", "--time=90", "--requeue", "--signal=TERM@120"} <= set(words)
    assert "--exclusive" not in words  # it has said what it needs of a node
    assert "--exclusive" in SlurmOptions.of({"gres": "gpu:2", "exclusive": True}).words(1)


@pytest.mark.parametrize(
    "given",
    [
        {"partition": True},
        {"partition": ""},
        {"partition": "a\n#SBATCH --uid=0"},
        {"exclusive": "yes"},
        {"export": "PATH"},
        {"sbatch": [1]},
        {"silence": 0},
        {"time": "later"},
        {"signal": "TERM"},
        {"python": "python3"},
        {"partitions": "a"},
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object]) -> None:
    [name] = given
    with pytest.raises(ConfigurationError, match=name):
        SlurmOptions.of(given)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("SLURM_CONF", True), ("SBATCH_ACCOUNT", True), ("SLURM_JOB_ID", False), ("SBATCH_WAIT", False),
        ("SBATCH_ARRAY_INX", False), ("SBATCH_EXCLUSIVE", False), ("SCANCEL_INTERACTIVE", False),
        ("SQUEUE_STATES", False), ("SRUN_EXPORT_ENV", False),
    ],
)  # fmt: skip
def test_of_the_callers_variables_neither_its_allocation_nor_options_of_commands_are_taken(
    name: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert keeper.environment().get(name) == ("1" if taken else None)


def test_slurms_lines_of_fields_are_read() -> None:
    line = "JobId=1 JobName=a JobState=RUNNING Reason=None NodeList=n[1-3] Features=(null) Req=0:0:*:*"
    found = keeper.parse_fields(line)
    assert found["JobState"] == "RUNNING" and found["NodeList"] == "n[1-3]"


def test_the_nodes_of_an_allocation_begin_with_that_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "NodeName=n1 NodeAddr=127.0.0.1 OS=Linux 6\nNodeName=n2 NodeAddr=127.0.0.2\nNodeName=n3.invalid\n"
    monkeypatch.setattr(keeper, "job_fields", lambda job: {"BatchHost": "n2", "NodeList": "n[1-2],n3.invalid"})
    monkeypatch.setattr(keeper, "command", lambda argv: (0, shown, ""))
    assert keeper.nodes("7") == [
        {"name": "n2", "address": "127.0.0.2"},
        {"name": "n1", "address": "127.0.0.1"},
        {"name": "n3.invalid", "address": ""},
    ]


def test_an_allocation_of_which_nothing_is_known_has_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "job_fields", lambda job: {})
    assert keeper.nodes("7") == []


@pytest.mark.parametrize("state", ["RUNNING", "SIGNALING", "RESIZING"])
def test_an_allocation_to_which_a_signal_is_on_its_way_runs_still(
    state: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    end = int(time.time()) + 1000
    monkeypatch.setattr(keeper, "job_fields", lambda job: {"JobState": state, "EndTime": str(end)})
    keeper.Keeper().take({"op": "look", "id": 1, "job": "7"})
    said = json.loads(waiting.until(lambda: capfdbinary.readouterr().out))
    assert (said["event"], said["id"], said["state"]) == ("state", 1, "RUNNING") and 0 < said["left"] <= 1000
