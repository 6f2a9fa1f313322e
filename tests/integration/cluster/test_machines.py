"""Jobs on hosts that share nothing with the caller: machines with addresses and files of their own.

What other tests of clusters hold of both, they hold here too (:mod:`places`); these are about what is between machines.
"""

from __future__ import annotations

import os
import signal
import tarfile
from pathlib import Path

import clusters
import fleet as fleets
import places
import pytest

from estimators import FailurePolicy
from estimators.inputs import TrainingInput

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")


@pytest.fixture
def make(fleet: fleets.Fleet, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the machines."""
    return places.on_fleet(fleet, tmp_path, home)


def test_nothing_of_the_caller_is_seen_and_outputs_come_back_byte_by_byte(
    make: clusters.Make, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("aaa")
    job = clusters.fit(
        make(
            f"""
            import os, pathlib, socket, sys
            import aid
            for place in {[str(tmp_path), str(home)]!r}:
                assert not os.path.exists(place), place
            train = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
            aid.report(argv=sys.argv[1:], data=(train / "a").read_text(), host=socket.gethostname())
            (train / "a").write_text("changed")
            model = pathlib.Path(os.environ["SM_MODEL_DIR"])
            (model / aid.HOST).write_text("weights of " + aid.HOST)
            (model / ("link-" + aid.HOST)).symlink_to(aid.HOST)
            (pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"]) / "notes").write_text("notes")
            for number in range(200_000):
                os.write(1, b"%06d %s\\n" % (number, b"x" * 40))
            """,
            hosts=2,
            hyperparameters={"rate": 0.5},
        ),
        {"train": str(tmp_path / "data")},
        logs=False,
    )
    said = clusters.reports(job)
    assert [said[rank]["argv"] for rank in (0, 1)] == [["--rate", "0.5"]] * 2
    assert [said[rank]["data"] for rank in (0, 1)] == ["aaa"] * 2
    assert said[0]["host"] != said[1]["host"]
    assert (tmp_path / "data" / "a").read_text() == "aaa"
    with tarfile.open(str(job.model_data)) as archive:
        assert sorted(archive.getnames()) == ["algo-1", "algo-2", "link-algo-1", "link-algo-2"]
        content = archive.extractfile("algo-2")
        assert content is not None and content.read() == b"weights of algo-2"
    assert Path(str(job.model_data)).with_name("output.tar.gz").is_file()
    expected = b"".join(b"%06d %s\n" % (number, b"x" * 40) for number in range(200_000))
    for rank in (0, 1):
        assert clusters.raw_log(job, rank, f"algo-{rank + 1}").endswith(expected), f"rank {rank} lost some of its bytes"


READS = """
import os, pathlib
import aid
found = {}
for name, place in os.environ.items():
    if name.startswith("SM_CHANNEL_"):
        if os.path.isdir(place):
            files = [sorted(path.read_text() for path in pathlib.Path(place).iterdir())]
        else:
            files = [[open(f"{place}_{epoch}").read()] for epoch in (0, 1)]
        found[name[11:]] = ["".join(texts).split() for texts in files]
aid.report(found=found)
"""


def test_channels_of_every_mode_reach_the_hosts_and_are_divided_among_them(make: clusters.Make, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        (data / f"part-{number}").write_text("".join(f"{number}-{line}\n" for line in range(50)))
    everything = [f"{number}-{line}" for number in range(4) for line in range(50)]
    modes = ("File", "Pipe", "FastFile")
    channels = {
        f"{mode}-{distribution}": TrainingInput(str(data), distribution=distribution, input_mode=mode)
        for mode in modes
        for distribution in ("FullyReplicated", "ShardedByS3Key")
    }
    job = clusters.fit(make(READS, hosts=2), channels, logs=False)
    first, second = (said["found"] for said in clusters.reports(job).values())
    for mode in modes:
        for epoch in range(1 + (mode == "Pipe")):
            whole, part = f"{mode}-FullyReplicated".upper(), f"{mode}-ShardedByS3Key".upper()
            assert first[whole][epoch] == second[whole][epoch] == everything, whole
            assert len(first[part][epoch]) == len(second[part][epoch]) == 100, part
            assert sorted(first[part][epoch] + second[part][epoch]) == sorted(everything), part


def test_checkpoints_come_here_while_it_trains_and_are_there_on_another_machine(
    make: clusters.Make, fleet: fleets.Fleet, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    job = make.start(
        """
        import os, pathlib, time
        import aid
        place = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
        found = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
        aid.mark("found-" + os.environ.get("FLEETFIT_ATTEMPT", "?"), ",".join(found))
        if "checkpoint-2-step-20" in found:
            assert (place / "checkpoint-2-step-20" / "weights").read_text() == "x" * 3_000_000
            raise SystemExit
        for step in (1, 2):
            staged = place / ".staged"
            staged.mkdir()
            (staged / "weights").write_text("x" * 3_000_000)
            (staged / "manifest.json").write_text("{}")
            staged.rename(place / f"checkpoint-{step}-step-{step}0")
            if step == 2:
                (place / "checkpoint-1-step-10" / "manifest.json").unlink()
                (place / "checkpoint-1-step-10" / "weights").unlink()
                (place / "checkpoint-1-step-10").rmdir()
            aid.mark(f"ready-{step - 1}")
            aid.wait_for(f"go-{step}")
        time.sleep(300)
        """,
        ready=1,
        checkpoint_s3_uri=str(saved),
        options={
            "failure_policy": FailurePolicy(max_failures=1),
            **make.changed(silence=2),
        },
    )
    first = saved / "checkpoint-1-step-10"
    clusters.until(lambda: (first / "manifest.json").exists())
    assert (first / "weights").stat().st_size == 3_000_000
    make.mark("go-1")
    clusters.until(lambda: (saved / "checkpoint-2-step-20" / "manifest.json").exists() and not first.exists())
    taken = next(machine for machine in fleet.machines if machine.processes())
    taken.cut()
    clusters.await_terminal(job)
    assert job.status == "Completed", job.describe().get("FailureReason")
    assert make.marked("found-1") == "checkpoint-2-step-20"
    assert "was lost: it has given no sign of life for 2 s" in str(job.record.read_status())


@pytest.mark.parametrize("end", ["supervisor", "agent", "link"])
def test_nothing_is_left_on_any_machine_when_an_end_of_the_connection_goes(
    end: str, make: clusters.Make, fleet: fleets.Fleet
) -> None:
    job = make.start(
        clusters.LEAVES_A_CHILD,
        hosts=2,
        processes=2,
        ready=4,
        options=make.changed(silence=2),
    )
    busy = [machine for machine in fleet.machines if machine.processes()]
    assert len(busy) == 2
    if end == "supervisor":
        clusters.supervisor(job).kill()
    elif end == "agent":
        agent = next(line for line in busy[0].processes() if line.endswith("agent host "))
        os.kill(int(agent.split()[0]), signal.SIGKILL)
    else:
        next(machine for machine in busy if machine.has(job.name, "algo-2")).cut()
    clusters.until(lambda: not any(machine.processes() for machine in busy))  # the cut one notices by itself
    assert clusters.await_terminal(job) == "Failed"
    said = {"supervisor": "supervisor lost", "agent": "was lost: the connection ", "link": "no sign of life for 2 s"}
    assert said[end] in str(job.describe()["FailureReason"])
    if end == "agent":
        for machine in busy:  # nobody is left there to remove it
            machine.tidy()


def test_a_machine_that_says_it_will_be_taken_is_an_interruption(make: clusters.Make, fleet: fleets.Fleet) -> None:
    job = make.start(
        """
        import os, signal, sys, time
        import aid
        if os.environ["FLEETFIT_ATTEMPT"] == "1":
            sys.exit(0)
        def save(*_):
            aid.mark("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        aid.mark("ready-0")
        time.sleep(300)
        """,
        ready=1,
        options=make.changed(notice=20),
    )
    busy = next(machine for machine in fleet.machines if machine.processes())
    os.kill(int(next(line for line in busy.processes() if line.endswith("agent host ")).split()[0]), signal.SIGTERM)
    make.marked("saved")
    clusters.await_terminal(job)
    assert job.status == "Completed"
    told = [event for event in job.record.events() if event.kind == "interrupted"]
    assert [(event.data["target"], event.data["notice_s"]) for event in told] == [("algo-1", 20)]
