"""Machines whose accounts and names are not as on ours: other login shells, and a name that nobody resolves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")

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
        [*inside, fleetfit, "train", script.name, "-n", "2", "-p", "1", *words],
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
    done = train(script, "-s", "mpi", changed="mount --bind passwd /etc/passwd", SHELL=f"/bin/{shell}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "] 2 ranks\n" in done.stdout
    assert "unhandled shell" not in done.stdout + done.stderr


def test_a_machine_that_cannot_resolve_its_own_name(script: Path, home: Path) -> None:
    """MPI does not need the name; Horovod's Gloo would crash without it."""
    done = train(script, "-s", "mpi", changed="hostname no-such-host.invalid")
    assert done.returncode == 0, done.stdout + done.stderr
    done = train(script, "-s", "elastic_horovod", changed="hostname no-such-host.invalid")
    assert done.returncode == 1
    assert "cannot resolve its own name, 'no-such-host.invalid'" in done.stderr
    assert "| sudo tee -a /etc/hosts" in done.stderr
