"""What is found on this machine, and of libraries made for the occasion, and what is said about it."""

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
from estimators.cli.main import main


def finding(findings: tuple, name: str) -> doctor.ReportLine:
    return next(item for item in findings if item.name == name)


def test_this_machine_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    report = doctor.diagnose()
    values = report.to_dict()
    assert {item["name"] for item in values["strategies"]} >= {"none", "mpi", "parameter_server"}
    assert any("no authentication" in text for text in values["remarks"])
    for section in ("software", "strategies", "backends"):
        for item in values[section]:
            assert item["state"] != "missing" or item["remedy"], item
    text = report.to_text()
    for name in ("Python", "TensorFlow", "Horovod", "OpenMPI", "mpi4py", "g++", "CPU", "Memory", "local_process"):
        assert name in text
    assert "listen on all network interfaces" in text
    assert "\x1b" not in text
    assert "\x1b[1mSoftware\x1b[0m" in report.to_text(colour=True)
    broken = doctor.ReportLine(name="mpi", state=Verdict.MISSING, text="x", remedy="y")
    assert not dataclasses.replace(report, strategies=(broken,)).healthy
    absent = dataclasses.replace(broken, state=Verdict.ABSENT)
    assert dataclasses.replace(report, strategies=(absent,), backends=()).healthy
    assert main(["doctor", "--json"]) == (0 if report.healthy else 1)
    assert json.loads(capsys.readouterr().out)["healthy"] is report.healthy

    without = doctor.diagnose(python="/nonexistent/python", environment={"PATH": "/nonexistent"})
    assert finding(without.software, "OpenMPI").state is Verdict.MISSING
    assert finding(without.strategies, "mpi").state is Verdict.MISSING
    assert "`fleetfit install mpi`" in finding(without.strategies, "mpi").remedy
    assert not without.healthy


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_horovod_is_held_against_the_libraries_that_it_was_built_with(tmp_path: Path) -> None:
    site = tmp_path / "site"
    module = site / "horovod" / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so"
    module.parent.mkdir(parents=True)
    packages = {"horovod": "0.28.1", "tensorflow-cpu": "2.21.0"}

    def build(target: Path, *options: str) -> None:
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(target), "-", "-x", "none", "-Wl,--no-as-needed"]
        subprocess.run([*command, *options], input=b"int x(void) { return 1; }", check=True)

    def look(mpirun: str | None) -> doctor.ReportLine:
        return installed.horovod(packages, [str(site)], tmp_path / mpirun / "bin" / "mpirun" if mpirun else None)

    for prefix in ("ours", "theirs"):
        (tmp_path / prefix / "lib").mkdir(parents=True)
        (tmp_path / prefix / "bin").mkdir()
        (tmp_path / prefix / "bin" / "mpirun").touch(mode=0o755)
        build(tmp_path / prefix / "lib" / "libmpi.so.404", "-Wl,-soname,libmpi.so.404")

    item = look("ours")
    assert item.state is Verdict.MISSING and "only for frameworks that are not installed" in item.text
    assert "`fleetfit install horovod tensorflow`" in item.remedy
    module.with_name("mpi_lib.so").write_bytes(b"damaged")
    assert look("ours").state is Verdict.MISSING, "a damaged one"
    module.with_name("mpi_lib.so").unlink()
    assert installed.horovod({}, [str(site)], None).state is Verdict.MISSING, "none at all"

    build(module)
    item = look("ours")
    assert item.state is Verdict.WARNING and "Gloo only" in item.text, "built without MPI"
    library = tmp_path / "ours" / "lib" / "libmpi.so.404"
    build(module, str(library), f"-Wl,-rpath,{library.parent}")
    assert look("ours").state is Verdict.OK, "built against this mpirun"
    item = look("theirs")
    assert item.state is Verdict.MISSING and "theirs" in item.text, "built against another one"
    assert "MPI_Init" in item.remedy

    packages["torch"] = "2.13.0"
    item = look(None)
    assert item.state is Verdict.OK and item.text.startswith("0.28.1 for TensorFlow (")
    assert item.text.endswith(
        "not for PyTorch: build Horovod for this environment: `fleetfit install horovod tensorflow torch`"
    )
    (site / "horovod" / "torch").mkdir()
    shutil.copy(module, site / "horovod" / "torch" / "mpi_lib_v2.so")
    item = look(None)
    assert item.state is Verdict.OK and item.text.startswith("0.28.1 for TensorFlow and PyTorch (")
    assert "not for" not in item.text
    del packages["tensorflow-cpu"]
    assert look(None).text.startswith("0.28.1 for PyTorch (")

    shutil.rmtree(tmp_path / "ours")
    item = look(None)
    assert item.state is Verdict.MISSING and "no longer exists" in item.text, "its MPI is gone"


@pytest.mark.horovod
def test_deep_starts_what_is_there() -> None:
    if shutil.which("mpirun", path=os.path.dirname(sys.executable)) is None:
        pytest.skip("there is no mpirun beside this Python")
    report = doctor.diagnose(deep=True)
    assert finding(report.software, "mpirun runs").state is Verdict.OK
    assert "built with mpi" in finding(report.software, "Horovod runs").text
