"""What a dispatcher says of a job that it cannot take."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from container.contract.messages import encode
from estimators.client import dispatching, ray_job

#: No process waits for the job.
NOBODY: Any = None


class Heard(dispatching.Speaker):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def say(self, message: Any) -> None:
        self.messages.append(dict(message))


@pytest.mark.parametrize(
    ("parcel", "said"),
    [
        (b"hello\n", "the received data is not a job"),
        (b"", "the received data is not a job"),
        (encode({"op": "parcel"}), "fleetfit failed on the dispatcher: KeyError: 'name' (dispatching.py:"),
    ],
)
def test_whatever_goes_wrong_is_told(parcel: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    heard = Heard()
    assert dispatching.submit(io.BytesIO(parcel), heard) == 0
    [message] = heard.messages
    assert message["op"] == "refused" and said in message["error"]
    (tmp_path / "parcel").write_bytes(parcel)
    assert ray_job._take(tmp_path / "parcel", NOBODY) == message
    assert not (tmp_path / "parcel").exists()
    assert ray_job._take(tmp_path / "parcel", NOBODY)["error"].endswith("parcel: No such file or directory")
