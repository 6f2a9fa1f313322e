"""What the supervisor says on a lifeline, in whatever pieces it arrives."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from container.contract import variables
from container.contract.environment import Environment, Machine
from container.contract.messages import encode
from container.system.loop import Loop
from container.toolkit.elastic.host import ElasticRuntime
from container.toolkit.host import HostRuntime
from container.toolkit.output import Output
from container.toolkit.runtime import HostSettings, Outcome, Runtime
from container.toolkit.train import Preparation

RunUntil = Callable[..., None]

FINISH, DUMP, KILL = encode({"op": "finish"}), encode({"op": "dump"}), encode({"op": "kill", "rank": 3, "signal": 9})
STOP, END = variables.SAY_STOP, variables.SAY_END


class Told:
    """A runtime on a lifeline, and what it was told."""

    def __init__(self, kind: type[Runtime], loop: Loop, folder: Path) -> None:
        self.log: list[Any] = []
        log = self.log

        class Recording(kind):  # type: ignore[misc, valid-type]
            def stop(self) -> None:
                log.append("stop")

            def end_now(self) -> None:
                log.append("end")

            def abandoned(self) -> None:
                log.append("abandoned")

            def _kill_rank(self, rank: int, number: int) -> None:
                log.append(("kill", rank, number))

            def _end_as(self, outcome: Outcome, grace: float = 0.0) -> None:
                log.append(outcome)

        environment = Environment.from_config(
            base_dir=folder,
            machine=Machine(python="python", cpus=1),
            hyperparameters={},
            resource_config={"hosts": ["algo-1"], "current_host": "algo-1"},
            input_data_config={},
        )
        settings = HostSettings(
            token=None, control_fd=None, control_address=None, start_timeout=1, stop_grace=1, runtime_dir=folder
        )
        self._printed, written = os.pipe()
        read_end, self.lifeline = os.pipe()
        self._loop, self._output = loop, Output(loop, written)
        Recording(loop, self._output, environment, settings).follow(read_end)
        os.close(written)

    def printed(self) -> bytes:
        return os.read(self._printed, 1 << 16)

    def close(self) -> None:
        until(lambda: "abandoned" in self.log, between=lambda: self._loop.run_once(0.1))
        os.close(self._printed)
        os.close(self._output._fd)


@pytest.fixture(params=[HostRuntime, ElasticRuntime])
def told(request: pytest.FixtureRequest, loop: Loop, tmp_path: Path) -> Iterator[Told]:
    one = Told(request.param, loop, tmp_path)
    yield one
    one.close()


@pytest.mark.parametrize("told", [ElasticRuntime], indirect=True)
def test_stop_and_a_message_in_one_read(told: Told, run_until: RunUntil) -> None:
    os.write(told.lifeline, STOP + FINISH + DUMP + STOP + FINISH)
    run_until(lambda: len(told.log) == 4)
    assert told.log == ["stop", Outcome(), "stop", Outcome()]
    os.close(told.lifeline)


def test_everything_in_its_order_whatever_the_pieces(told: Told, loop: Loop, run_until: RunUntil) -> None:
    data = STOP + DUMP + END
    for at in range(len(data)):
        os.write(told.lifeline, data[at : at + 1])
        loop.run_once(0.1)
    assert told.log == ["stop", "end"]
    os.write(told.lifeline, data[:-1])
    os.close(told.lifeline)  # in the middle of a message
    run_until(lambda: told.log[-1] == "abandoned")
    assert told.log == ["stop", "end", "stop", "abandoned"]


@pytest.mark.parametrize("told", [HostRuntime], indirect=True)
def test_a_rank_is_sent_a_signal(told: Told, run_until: RunUntil) -> None:
    os.write(told.lifeline, KILL + STOP)
    run_until(lambda: len(told.log) == 2)
    assert told.log == [("kill", 3, 9), "stop"]
    os.close(told.lifeline)


def test_what_is_no_message_ends_the_host_and_says_so(told: Told, run_until: RunUntil) -> None:
    os.write(told.lifeline, b"stop\n" + STOP)
    run_until(lambda: told.log)
    assert told.log == ["abandoned"]
    assert b"[algo-1] a message of the supervisor was not understood: a line of 4 bytes" in told.printed()
    os.close(told.lifeline)


@pytest.mark.parametrize("kind", [HostRuntime, ElasticRuntime])
def test_a_host_that_has_ended_while_it_was_prepared_starts_nothing(
    kind: type[Runtime], loop: Loop, tmp_path: Path
) -> None:
    """The end of the lifeline and the end of the preparation may come in the same moment."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import tensorflow\n")
    environment = Environment.from_config(
        base_dir=tmp_path,
        machine=Machine(python=sys.executable, cpus=1),
        hyperparameters={"sagemaker_program": '"train.py"'},
        resource_config={"hosts": ["algo-1"], "current_host": "algo-1"},
        input_data_config={},
    )
    settings = HostSettings(
        token=None, control_fd=None, control_address=None, start_timeout=1, stop_grace=1, runtime_dir=tmp_path,
        importers=tmp_path / "importers",
    )  # fmt: skip
    with open(os.devnull, "wb") as nowhere:
        output = Output(loop, nowhere.fileno())
    runtime = kind(loop, output, environment, settings)
    preparation = Preparation(loop, output, environment, settings, runtime)
    before = threading.enumerate()
    preparation.start()
    until(lambda: threading.enumerate() == before)
    runtime.abandoned()
    loop.run_once(1.0)
    assert not settings.importers.exists() and not (tmp_path / "host.sock").exists()
    assert runtime.run().failure is not None
    os.close(output._fd)
