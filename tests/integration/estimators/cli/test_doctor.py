"""What is found and what is said about it."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.cli import doctor
from estimators.cli.doctor import Verdict, installed


def finding(findings: tuple, name: str) -> doctor.ReportLine:
    return next(item for item in findings if item.name == name)


def test_this_machine_is_described_without_importing_what_is_described() -> None:
    code = (
        "import sys; from estimators.cli import doctor; r = doctor.diagnose(); import json; "
        "print(json.dumps([r.to_dict(), sorted(m for m in sys.modules if '.' not in m)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    report, modules = json.loads(done.stdout)
    assert not {"tensorflow", "tf_keras", "keras", "horovod", "mpi4py", "numpy", "docker"} & set(modules)
    assert {item["name"] for item in report["strategies"]} >= {"none", "mpi", "parameter_server"}
    assert any("no authentication" in text for text in report["remarks"])
    for section in ("software", "strategies", "backends"):
        for item in report[section]:
            assert item["state"] != "missing" or item["remedy"], item


def test_the_text_names_every_finding() -> None:
    report = doctor.diagnose()
    text = report.to_text()
    for name in ("Python", "TensorFlow", "Horovod", "OpenMPI", "mpi4py", "g++", "CPU", "Memory", "local_process"):
        assert name in text
    assert "listen on all network interfaces" in text
    assert "\x1b" not in text
    assert "\x1b[1mSoftware\x1b[0m" in report.to_text(colour=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
class TestHorovod:
    """Against libraries made for the occasion."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Path:
        (tmp_path / "site" / "horovod" / "tensorflow").mkdir(parents=True)
        for prefix in ("ours", "theirs"):
            (tmp_path / prefix / "lib").mkdir(parents=True)
            (tmp_path / prefix / "bin").mkdir()
            (tmp_path / prefix / "bin" / "mpirun").touch(mode=0o755)
            self.build(tmp_path / prefix / "lib" / "libmpi.so.404", "-Wl,-soname,libmpi.so.404")
        return tmp_path / "site"

    def build(self, target: Path, *options: str) -> None:
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-x",
            "c",
            "-o",
            str(target),
            "-",
            "-x",
            "none",
            "-Wl,--no-as-needed",
            *options,
        ]
        subprocess.run(command, input=b"int x(void) { return 1; }", check=True)

    def module(self, site: Path, *options: str) -> None:
        self.build(site / "horovod" / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so", *options)

    def look(self, site: Path, mpirun: str | None) -> doctor.ReportLine:
        path = site.parent / mpirun / "bin" / "mpirun" if mpirun else None
        return installed.horovod({"horovod": "0.28.1", "tensorflow-cpu": "2.21.0"}, [str(site)], path)

    def linked(self, site: Path) -> None:
        library = site.parent / "ours" / "lib" / "libmpi.so.404"
        self.module(site, str(library), f"-Wl,-rpath,{library.parent}")

    def test_built_against_this_mpirun(self, site: Path) -> None:
        self.linked(site)
        assert self.look(site, "ours").state is Verdict.OK

    def test_built_against_another_one(self, site: Path) -> None:
        self.linked(site)
        item = self.look(site, "theirs")
        assert item.state is Verdict.MISSING
        assert "theirs" in item.text
        assert "MPI_Init" in item.remedy

    def test_its_mpi_is_gone(self, site: Path) -> None:
        self.linked(site)
        shutil.rmtree(site.parent / "ours")
        item = self.look(site, None)
        assert item.state is Verdict.MISSING
        assert "no longer exists" in item.text

    def test_built_without_mpi(self, site: Path) -> None:
        self.module(site)
        item = self.look(site, "ours")
        assert item.state is Verdict.WARNING
        assert "Gloo only" in item.text

    def test_built_for_what_is_not_there_or_damaged_or_absent(self, site: Path) -> None:
        item = self.look(site, "ours")
        assert item.state is Verdict.MISSING and "only for frameworks that are not installed" in item.text
        assert "`fleetfit install horovod tensorflow`" in item.remedy
        (site / "horovod" / "tensorflow" / "mpi_lib.so").write_bytes(b"damaged")
        assert self.look(site, "ours").state is Verdict.MISSING
        assert installed.horovod({}, [str(site)], None).state is Verdict.MISSING

    def test_which_frameworks_it_is_for(self, site: Path) -> None:
        self.linked(site)
        packages = {"horovod": "0.28.1", "tensorflow-cpu": "2.21.0", "torch": "2.13.0"}
        item = installed.horovod(packages, [str(site)], None)
        assert item.state is Verdict.OK and item.text.startswith("0.28.1 for TensorFlow (")
        assert item.text.endswith(
            "not for PyTorch: build Horovod for this environment: `fleetfit install horovod tensorflow torch`"
        )
        (site / "horovod" / "torch").mkdir()
        shutil.copy(next((site / "horovod" / "tensorflow").iterdir()), site / "horovod" / "torch" / "mpi_lib_v2.so")
        item = installed.horovod(packages, [str(site)], None)
        assert item.state is Verdict.OK and item.text.startswith("0.28.1 for TensorFlow and PyTorch (")
        assert "not for" not in item.text
        del packages["tensorflow-cpu"]
        assert installed.horovod(packages, [str(site)], None).text.startswith("0.28.1 for PyTorch (")


def test_a_report_with_something_missing_is_not_healthy() -> None:
    report = doctor.diagnose()
    broken = doctor.ReportLine(name="mpi", state=Verdict.MISSING, text="x", remedy="y")
    assert not dataclasses.replace(report, strategies=(broken,)).healthy
    absent = dataclasses.replace(broken, state=Verdict.ABSENT)
    assert dataclasses.replace(report, strategies=(absent,), backends=()).healthy


@pytest.mark.horovod
def test_deep_starts_what_is_there() -> None:
    if shutil.which("mpirun", path=os.path.dirname(sys.executable)) is None:
        pytest.skip("there is no mpirun beside this Python")
    report = doctor.diagnose(deep=True)
    assert finding(report.software, "mpirun runs").state is Verdict.OK
    assert "built with mpi" in finding(report.software, "Horovod runs").text


def test_no_mpirun_at_all() -> None:
    report = doctor.diagnose(python="/nonexistent/python", environment={"PATH": "/nonexistent"})
    assert finding(report.software, "OpenMPI").state is Verdict.MISSING
    assert finding(report.strategies, "mpi").state is Verdict.MISSING
    assert "`fleetfit install mpi`" in finding(report.strategies, "mpi").remedy
    assert not report.healthy
