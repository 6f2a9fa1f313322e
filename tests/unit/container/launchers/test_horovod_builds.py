"""A Horovod that was built for another framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.launchers import LaunchError, horovod_builds


def test_a_host_refuses_a_script_for_what_its_horovod_was_not_built_for(tmp_path: Path) -> None:
    script, site, overlay = tmp_path / "train.py", tmp_path / "site", tmp_path / "overlay"
    folders = [tmp_path / "nowhere", site, overlay]
    script.write_text("import horovod.torch as hvd\n")
    horovod_builds.check(script, tmp_path / "code", folders, "algo-2")  # there is none, which its import says
    (site / "horovod" / "tensorflow").mkdir(parents=True)
    (site / "horovod" / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so").touch()
    with pytest.raises(LaunchError) as caught:
        horovod_builds.check(script, tmp_path / "code", folders, "algo-2")
    assert str(caught.value) == (
        "train.py needs Horovod for PyTorch, but on algo-2 Horovod is built for TensorFlow only. Run `fleetfit install "
        "horovod tensorflow torch` on that machine, or on your machine if fleetfit makes the environment of that "
        "machine. The command builds Horovod for both frameworks."
    )
    (tmp_path / "code" / "horovod").mkdir(parents=True)  # the job's own
    horovod_builds.check(script, tmp_path / "code", folders, "algo-2")
    (tmp_path / "code" / "horovod").rmdir()
    (overlay / "horovod" / "torch").mkdir(parents=True)
    (overlay / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").touch()  # of a requirements.txt
    horovod_builds.check(script, tmp_path / "code", folders, "algo-2")


@pytest.mark.parametrize("text", ["import horovod.tensorflow as hvd\n", "import horovod.\n", "#!/bin/sh\nhorovod\n"])
def test_what_it_does_not_need_is_not_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "horovod" / "tensorflow").mkdir(parents=True)
    (tmp_path / "horovod" / "tensorflow" / "mpi_lib.so").touch()
    for name in ("train.py", "train.sh"):
        (tmp_path / name).write_text(text)
        horovod_builds.check(tmp_path / name, tmp_path / "code", [tmp_path], "algo-1")
    horovod_builds.check(tmp_path / "missing.py", tmp_path / "code", [tmp_path], "algo-1")
