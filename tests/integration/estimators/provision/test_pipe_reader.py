"""The compiled reader of Pipe mode where its source does not compile."""

from __future__ import annotations

import pytest

from estimators.provision import pipe_reader
from estimators.provision.errors import PipeReaderUnavailable
from estimators.provision.packages import Installation


def test_what_does_not_compile_leaves_nothing_but_its_log(installation: Installation) -> None:
    framework = installation.packages / "tensorflow"  # without headers
    framework.mkdir()
    (framework / "libtensorflow_framework.so.2").touch()
    with pytest.raises(PipeReaderUnavailable, match=r"does not compile.*pipe-reader\.log"):
        pipe_reader.install(installation)
    assert "filesystem_interface.h" in installation.log("pipe-reader").read_text()
    assert not list((installation.prefix / "lib" / "fleetfit").iterdir())
