"""Nothing of what ranks print is lost, torn, or out of order: in the record, and live."""

from __future__ import annotations

import contextlib
import io
import re
import time
from pathlib import Path
from typing import Any

import clusters
import pytest
import shapes

from estimators import TrainingJob

LINES = 20_000


def live(make: clusters.Make, script: str, **settings: Any) -> tuple[str, TrainingJob]:
    """Run a script and return what ``fit()`` printed meanwhile, and the job."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        job = make.run(script, logs=True, all=True, **settings)
    return shown.getvalue(), job


@shapes.every
def test_twenty_thousand_lines_of_each_rank_all_arrive_in_order(shape: shapes.Shape, make: clusters.Make) -> None:
    """And their metrics. The chief ends last: its end is the workers' end."""
    shown, job = live(
        make,
        f"""
        import os, sys
        import aid
        if aid.RANK == 0 and "chief" in os.environ.get("TF_CONFIG", ""):
            for rank in range(1, {shape.size}):
                aid.wait_for(f"said-{{rank}}")
        for number in range({LINES}):
            print(f"line {{number}} of rank {{aid.RANK}}")
        for step in range(3):
            print(f"line {LINES}, step {{step}} loss: {{1 / (step + 1 + aid.RANK):.3f}}")
        sys.stdout.flush()
        aid.mark(f"said-{{aid.RANK}}")
        """,
        **shape.settings,
        metric_definitions=[{"Name": "loss", "Regex": r"loss: ([0-9.]+)"}],
    )
    assert job.status == "Completed"
    by_process: dict[tuple[str, str], list[str]] = {}
    for line in shown.splitlines():
        if match := re.fullmatch(r"\[(algo-\d):([a-z]+(?: \d)?)\] (line .*)", line):
            by_process.setdefault((match[1], match[2]), []).append(match[3])
    assert set(by_process) == set(shape.ranks)
    frame = job.metrics()
    for rank, (host, process) in enumerate(shape.ranks):
        values = [round(1 / (step + 1 + rank), 3) for step in range(3)]
        wanted = [f"line {number} of rank {rank}" for number in range(LINES)]
        wanted += [f"line {LINES}, step {step} loss: {value:.3f}" for step, value in enumerate(values)]
        raw = (job.record.log_dir(host, 0) / f"{process.replace(' ', '-')}.log").read_bytes()
        assert raw == "".join(f"{line}\n" for line in wanted).encode()
        assert by_process[host, process] == wanted
        assert clusters.printed(job, rank) == wanted
        mine = frame[frame["rank"] == rank]
        assert set(mine["host"]) == {host} and list(mine["name"]) == ["loss"] * 3
        assert list(mine["value"]) == values
    assert job.describe()["FinalMetricDataList"][0]["MetricName"] == "loss"
    for host in ("algo-1", "algo-2"):
        tree = job.record.tree(host)
        assert tree.success_file.exists() and not tree.failure_file.exists(), f"{host} does not say that it ended well"


def test_raw_logs_are_what_the_script_wrote_byte_by_byte(make: clusters.Make) -> None:
    """Every byte, every terminator, torn characters, no newline at the end, lines of megabytes."""
    job = make.run(
        r"""
        import os, random
        import aid
        choice = random.Random(aid.RANK)
        pieces = [
            bytes(range(256)), b"\r\n", b"\n\r", b"\r", b"\n\n\n", "zażółć 学习 🚀".encode(), b"\xf0\x9f",
            b"[algo-9:rank 9] no\n", b"fleetfit-event {}\n", b"x" * 350_000 + b"\n", b"\0", b"",
            ("ż" * 200_000).encode() + b"\r", b"100%\r", b"\x1b[31mred\x1b[0m\n",
        ]
        with open(os.path.join(aid.MARKS, f"wrote-{aid.RANK}"), "wb") as copy:
            for _ in range(60):
                data = b"".join(choice.choices(pieces, k=choice.randint(1, 5)))
                copy.write(data)
                descriptor = choice.choice((1, 2))
                while data:
                    data = data[os.write(descriptor, data[:choice.randint(1, 100_000)]):]
            copy.write(b"the end")
            os.write(1, b"the end")
        """,
        hosts=2,
        processes=2,
    )
    for rank in range(4):
        wrote = (make.marks / f"wrote-{rank}").read_bytes()
        assert len(wrote) > 1_000_000
        assert clusters.raw_log(job, rank, f"algo-{1 + rank // 2}") == wrote


def test_lines_are_shown_whole_whatever_is_in_them(make: clusters.Make) -> None:
    """Long ones, characters in pieces, the states of a progress bar, and a last line without an end."""
    shown, job = live(
        make,
        """
        import sys, time
        import aid
        if aid.RANK == 0:
            print("a" * 400_000 + "!")
            print("ż学🚀" * 100_000 + "!")
        elif aid.RANK == 1:
            for byte in "zażółć 学习 🚀!\\n".encode():
                sys.stdout.buffer.write(bytes([byte]))
                sys.stdout.buffer.flush()
                time.sleep(0.002)
        elif aid.RANK == 2:
            for step in range(1, 4):
                sys.stdout.write(f"\\rstep {step}/3")
                sys.stdout.flush()
                time.sleep(0.02)
            sys.stdout.write("\\nno newline at the end")
        else:
            for n in (20, 8):
                sys.stdout.write("y" * (n << 20))
            sys.stdout.write("\\n")
        """,
        hosts=2,
        processes=2,
    )
    lines = shown.splitlines()
    assert lines.count("[algo-1:rank 0] " + "a" * 400_000 + "!") == 1
    assert lines.count("[algo-1:rank 0] " + "ż学🚀" * 100_000 + "!") == 1
    assert lines.count("[algo-1:rank 1] zażółć 学习 🚀!") == 1
    assert "\ufffd" not in shown
    assert clusters.raw_log(job, 2, "algo-2") == b"\rstep 1/3\rstep 2/3\rstep 3/3\nno newline at the end"
    assert clusters.printed(job, 2) == ["", "step 1/3", "step 2/3", "step 3/3", "no newline at the end"]
    bar = [line for line in lines if line.startswith("[algo-2:rank 2]")]
    assert bar[-2:] == ["[algo-2:rank 2] step 3/3", "[algo-2:rank 2] no newline at the end"]
    assert "\r" not in shown  # nothing overwrites anything in a file
    whole = clusters.raw_log(job, 3, "algo-2") == b"y" * (28 << 20) + b"\n"
    assert whole, "the line of 28 MB is not whole in the raw log"
    assert {line.rank for line in job.log_lines() if line.rank is not None} == {0, 1, 2, 3}


def test_a_slow_reader_slows_the_ranks_and_loses_nothing(make: clusters.Make) -> None:
    """SIGSTOP of the supervisor for a while: the ranks' output waits, in bounded memory."""
    job = make.start(
        """
        import aid
        aid.mark("ready-0")
        aid.wait_for("go")
        line = "z" * 999
        for number in range(100_000):  # 100 MB
            print(number, line)
        """,
        processes=1,
        ready=1,
    )
    snapshot = clusters.Snapshot(job)
    toolkit = snapshot.find("toolkit")
    snapshot.supervisor.kill(19)
    make.mark("go")
    peak, since = 0, time.monotonic()

    def settled() -> bool:
        nonlocal peak, since
        now = _peak_memory(toolkit.pid)
        if now != peak:
            peak, since = now, time.monotonic()
        return time.monotonic() - since > 0.4

    try:
        clusters.until(settled)
        assert peak < 80 << 10, f"the toolkit took {peak >> 10} MiB"
    finally:
        snapshot.supervisor.kill(18)
    job.wait(logs=False)
    assert job.status == "Completed"
    log = clusters.raw_log(job, 0)
    assert log == b"".join(b"%d %s\n" % (number, b"z" * 999) for number in range(100_000))


def _peak_memory(pid: int) -> int:
    """In KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1])  # type: ignore[index]


def test_an_installation_of_requirements_is_told(
    make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event is the stage that is shown meanwhile (tests/unit/estimators/client/test_progress.py)."""
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))  # else it may be known that nothing is missing
    shown, job = live(make, "print('trained')", files={"requirements.txt": "packaging\n"})
    names = [event.data["name"] for event in job.record.events("phase")]
    assert names.index("toolkit_started") < names.index("installing") < names.index("ranks_started")
    assert "[algo-1] requirements.txt: nothing is missing" in shown
