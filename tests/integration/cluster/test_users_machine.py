"""Machines whose accounts and names are not as on ours: other login shells, and a name that nobody resolves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import clusters
import fleet as fleets
import pytest

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="namespaces need root")

SAYS = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1), 'ranks')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script for MPI."""
    path = tmp_path / "says.py"
    path.write_text(SAYS)
    return path


def train(script: Path, *words: str, changed: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``fleetfit train`` in namespaces of its own, after a command of the shell has changed something there."""
    fleetfit = str(Path(sys.executable).with_name("fleetfit"))
    inside = ["unshare", "--mount", "--uts", "sh", "-c", f'{changed} && exec "$@"', "sh"]
    return subprocess.run(
        [*inside, fleetfit, "train", script.name, "-p", "1", *words],
        cwd=script.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.landing
@pytest.mark.parametrize("shell", ["sh", "tcsh", "fish", "nologin"])
def test_jobs_run_whatever_the_users_login_shell_is(shell: str, script: Path, home: Path) -> None:
    """mpirun writes the line for its remote shell in the grammar of the login shell that the password file names."""
    (script.parent / "passwd").write_text(f"root:x:0:0:root:/root:/bin/{shell}\n")
    done = train(script, "-n", "2", "-s", "mpi", changed="mount --bind passwd /etc/passwd", SHELL=f"/bin/{shell}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "] 2 ranks\n" in done.stdout
    assert "unhandled shell" not in done.stdout + done.stderr


def test_mpi_needs_no_machine_that_resolves_its_own_name_and_horovods_gloo_would_crash_on_one(
    script: Path, home: Path
) -> None:
    done = train(script, "-n", "2", "-s", "mpi", changed="hostname no-such-host.invalid")
    assert done.returncode == 0, done.stdout + done.stderr
    before = set((home / "jobs").iterdir())
    done = train(script, "-n", "2", "-s", "elastic_horovod", changed="hostname no-such-host.invalid")
    assert done.returncode == 1
    assert "cannot resolve its own name, 'no-such-host.invalid'" in done.stderr
    assert "| sudo tee -a /etc/hosts" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    [record] = set((home / "jobs").iterdir()) - before
    clusters.until(lambda: (record / "result.json").exists())  # the supervisor's last act
    assert (record / "supervisor.log").read_text() == ""
