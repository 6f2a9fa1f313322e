"""Jobs on machines that ssh reaches, beside ``mpirun`` and Horovod's ``horovodrun`` over the same sshd.

The machines are network namespaces of this one, each with an sshd of its own (``tests/support/fleet.py``), so one clock
says when a script began. Hosts are warm: our code is there, and nothing is installed. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_SCRIPTS = harness.HERE / "scripts"
_BIN = Path(sys.executable).parent
_SUPPORT = harness.HERE.parent / "tests" / "support"
_BAR_S = 1.5
_LOST_BAR_S = 2.0
_TIMEOUT_S = 120.0
_FIRST = re.compile(r"first line (\d+\.\d+)")


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    sys.path.append(str(_SUPPORT))
    import fleet as fleets

    if not fleets.possible():
        raise SystemExit("network namespaces need root and iproute2")
    quiet = Quiet(options.patience)
    failed: dict[str, str] = {}
    with harness.own_home() as home, contextlib.closing(fleets.Fleet(2)) as fleet:
        if fleet.keys is None:
            raise SystemExit("openssh-server is not installed")
        reach = _Reach(fleet, Path(home))
        ways = {
            "fit(), scripts": lambda: reach.fit(mpi=False),
            "fit(), MPI": lambda: reach.fit(mpi=True),
            "mpirun": reach.mpirun,
            "horovodrun": reach.horovodrun,
            "horovodrun, elastic": reach.horovodrun_elastic,
            "fit(), elastic": reach.fit_elastic,
        }
        values = harness.alternate(options.alternations or 7, ways, quiet, failures=failed)
        lost: list[Numbers] = [reach.host_lost() for _ in range(3 if options.alternations else 5)]
    rows = [
        Row(
            what=f"start to the script's first line on two warm ssh hosts: {name}",
            estimate=median_with_interval([one["first"] for one in numbers]),
            unit="s",
            bar=Bar(limit=_BAR_S) if name.startswith("fit()") and "elastic" not in name else None,
            beside={"whole": statistics.median(one["whole"] for one in numbers)},
        )
        for name, numbers in values.items()
    ]
    rows.append(
        Row(
            what="elastic over ssh: SIGKILL of a host's agent to the others' new membership",
            estimate=median_with_interval([one["lost"] for one in lost]),
            unit="s",
            bar=Bar(limit=_LOST_BAR_S),
        )
    )
    samples: dict[str, Any] = {**values, "host lost": lost, "failed": failed}
    harness.record("ssh", rows, samples, quiet, dry=options.dry)


class _Reach:
    """Ways to the machines of a fleet.

    Args:
        fleet: The machines.
        folder: For files of its own.
    """

    def __init__(self, fleet: Any, folder: Path) -> None:
        self._fleet = fleet
        self._addresses = [machine.address for machine in fleet.machines]
        self._known = folder / "known_hosts"
        #: For those who take a program for ssh: a file of keys that is theirs, and no question.
        self._config = fleet.keys.client(
            "Host *", f"  UserKnownHostsFile {self._known}", "  StrictHostKeyChecking accept-new", "  LogLevel ERROR"
        )
        self._folder = folder
        self._marks = fleet.marks

    def _options(self, **more: Any) -> Any:
        from estimators import RunOptions

        hosts = {"hosts": self._addresses, "ssh_config": str(self._config), "python": sys.executable}
        return RunOptions(backend_options={**hosts, **more})

    def _estimator(self, **settings: Any) -> Any:
        from estimators import TensorFlow

        return TensorFlow(
            **{
                "entry_point": "first_line.py",
                "source_dir": str(_SCRIPTS),
                "instance_count": 2,
                "instance_type": "ssh",
                "model_dir": False,
                "run_options": self._options(),
                **settings,
            }
        )

    def _fit(self, estimator: Any) -> Numbers:
        from estimators import PreflightWarning

        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore", PreflightWarning)
            start = time.time()
            job = estimator.fit()
            end = time.time()
        harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
        assert job.status == "Completed"
        said = [float(found[1]) for line in job.log_lines() if (found := _FIRST.search(line.text))]
        assert len(said) == 2, said
        return {"first": max(said) - start, "whole": end - start}

    def fit(self, *, mpi: bool) -> Numbers:
        """Ours."""
        from estimators import MPI

        return self._fit(self._estimator(distribution=MPI() if mpi else None))

    def fit_elastic(self) -> Numbers:
        """Ours, elastic: until Horovod's driver has placed both workers."""
        from estimators import ElasticHorovod

        return self._fit(self._estimator(distribution=ElasticHorovod(warm=False)))

    def _program(self, argv: list[str], **environment: str) -> Numbers:
        path = f"{_BIN}:{os.environ.get('PATH', os.defpath)}"
        start = time.time()
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PATH": path, **environment},
        )
        end = time.time()
        said = [float(found) for found in _FIRST.findall(done.stdout + done.stderr)]
        if done.returncode != 0 or len(said) != 2:
            raise RuntimeError(f"{argv[0]}: exit status {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
        return {"first": max(said) - start, "whole": end - start}

    def mpirun(self) -> Numbers:
        """OpenMPI's own launch over ssh."""
        agent = shlex.join(["ssh", "-F", str(self._config)])
        words = ["--prefix", str(_BIN.parent), "--mca", "plm_rsh_agent", agent, "-H", ",".join(self._addresses)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        argv = [str(_BIN / "mpirun"), *root, *words, "--mca", "btl_tcp_if_include", "eth0", "-np", "2"]
        return self._program([*argv, sys.executable, str(_SCRIPTS / "first_line.py")])

    @property
    def _ssh(self) -> dict[str, str]:
        """horovodrun calls ``ssh`` by its name: one that takes our configuration comes first in PATH."""
        program = self._folder / "bin" / "ssh"
        if not program.exists():
            program.parent.mkdir()
            program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {shlex.quote(str(self._config))} "$@"\n')
            program.chmod(0o755)
        return {"PATH": f"{program.parent}:{_BIN}:{os.environ.get('PATH', os.defpath)}"}

    def horovodrun(self) -> Numbers:
        """Horovod's own launch with Gloo."""
        hosts = ",".join(f"{address}:1" for address in self._addresses)
        argv = [str(_BIN / "horovodrun"), "--gloo", "-np", "2", "-H", hosts, "--disable-cache"]
        return self._program([*argv, sys.executable, str(_SCRIPTS / "first_line.py")], **self._ssh)

    def horovodrun_elastic(self) -> Numbers:
        """Horovod's own elastic launch with a discovery script."""
        script = self._folder / "discover_hosts.sh"
        script.write_text("#!/bin/sh\n" + "".join(f"echo {address}:1\n" for address in self._addresses))
        script.chmod(0o755)
        argv = [str(_BIN / "horovodrun"), "-np", "2", "--min-np", "2", "--host-discovery-script", str(script)]
        return self._program([*argv, sys.executable, str(_SCRIPTS / "first_line.py"), "1"], **self._ssh)

    def host_lost(self) -> Numbers:
        """SIGKILL of the agent on one of two hosts of an elastic job, until the other trains without it."""
        from estimators import ElasticHorovod

        strategy = ElasticHorovod(min_hosts=1, warm=False)
        code = self._folder / "meeting"
        if not code.exists():
            from elastic_jobs import MEETING  # of tests/support

            code.mkdir()
            (code / "train.py").write_text(
                MEETING.replace("import aid", "").replace("aid.MARKS", "os.environ['MARKS']")
            )
        settings = {"source_dir": str(code), "entry_point": "train.py", "environment": {"MARKS": str(self._marks)}}
        job = self._estimator(distribution=strategy, **settings).fit(wait=False)
        with _ended(job):
            _await(lambda: _sizes(job)[-1:] == [2])
            machine = next(one for one in self._fleet.machines if any("agent host" in line for line in one.processes()))
            agent = next(line for line in machine.processes() if line.endswith("agent host "))
            start = time.time()
            os.kill(int(agent.split()[0]), signal.SIGKILL)
            _await(lambda: 1 in _sizes(job))
            event = next(event for event in job.record.events("resized") if event.data["size"] == 1)
        machine.tidy()
        return {"lost": event.time_ns / 1e9 - start}


def _sizes(job: Any) -> list[int]:
    return [event.data["size"] for event in job.record.events("resized")]


def _await(condition: Any) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def _ended(job: Any) -> Iterator[None]:
    try:
        yield
    finally:
        job.stop()
        job.wait(logs=False)
