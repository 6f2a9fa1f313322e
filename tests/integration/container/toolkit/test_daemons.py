"""What mpirun gives its remote shell is read without a shell, and nothing but its daemon is started."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from container.contract.environment import Machine
from container.launchers.mpi import REMOTE_SHELL, USERS_PATH
from container.toolkit.mpi import daemons


def test_the_remote_shell_is_a_program_in_the_private_folder(tmp_path: Path) -> None:
    machine = Machine(python=sys.executable, cpus=1, container_package="/site/con tainer")
    line = ["mpirun", "-x", USERS_PATH, "--mca", "plm_rsh_agent", REMOTE_SHELL]
    argv = daemons.prepare(line, "/bin", tmp_path, machine)
    assert argv[2] == "FLEETFIT_USERS_PATH=/bin"
    shell = Path(argv[-1])
    assert shell.parent == tmp_path
    assert shell.stat().st_mode & 0o777 == 0o700
    text = subprocess.run(["sh", "-n", str(shell)], capture_output=True, text=True)
    assert text.returncode == 0
    assert "'/site/con tainer/__main__.py' rsh \"$@\"" in shell.read_text()
    asked = subprocess.run([shell, "algo-2", "echo $SHELL"], capture_output=True, text=True)  # as setup_shell does
    assert (asked.returncode, asked.stdout) == (0, "/bin/bash\n")


def test_mpirun_has_few_descriptors_and_the_script_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = subprocess.Popen(["sleep", "60"])
    try:
        for limit in (8, 64):
            monkeypatch.setattr(daemons, "OPEN_FILES", limit)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (32, most))
            daemons.limit_open_files(process.pid)
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (min(limit, 32), most)
    finally:
        process.kill()
        process.wait()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, most))
    assert "FLEETFIT_USERS_OPEN_FILES" not in daemons.session_environment(tmp_path, "")
    monkeypatch.setattr(daemons, "OPEN_FILES", 8)
    assert daemons.session_environment(tmp_path, "")["FLEETFIT_USERS_OPEN_FILES"] == "32"
