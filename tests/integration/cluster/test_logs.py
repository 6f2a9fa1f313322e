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

from estimators import TrainingJob, TrainingJobError

LINES = 20_000


def live(make: clusters.Make, script: str, **settings: Any) -> tuple[str, TrainingJob]:
    """Run a script and return what ``fit()`` printed meanwhile, and the job."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        job = make.run(script, logs="All", **settings)
    return shown.getvalue(), job


@shapes.every
def test_twenty_thousand_lines_of_each_rank_all_arrive_in_order(shape: shapes.Shape, make: clusters.Make) -> None:
    """Under parameter servers the chief's end is the workers' end: it is the last that has something to say."""
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
        sys.stdout.flush()
        aid.mark(f"said-{{aid.RANK}}")
        """,
        **shape.settings,
    )
    by_process: dict[tuple[str, str], list[str]] = {}
    for line in shown.splitlines():
        if match := re.fullmatch(r"\[(algo-\d):([a-z]+(?: \d)?)\] (line .*)", line):
            by_process.setdefault((match[1], match[2]), []).append(match[3])
    assert set(by_process) == set(shape.ranks)
    for rank, (host, process) in enumerate(shape.ranks):
        wanted = [f"line {number} of rank {rank}" for number in range(LINES)]
        raw = (job.record.log_dir(host, 0) / f"{process.replace(' ', '-')}.log").read_bytes()
        assert raw == "".join(f"{line}\n" for line in wanted).encode()
        assert by_process[host, process] == wanted
        assert clusters.printed(job, rank) == wanted


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


def test_a_line_of_twenty_megabytes_is_kept_whole_in_the_raw_log(make: clusters.Make) -> None:
    job = make.run("import sys\nfor n in (20, 8):\n    sys.stdout.write('y' * (n << 20))\nsys.stdout.write('\\n')")
    whole = clusters.raw_log(job, 0) == b"y" * (28 << 20) + b"\n"
    assert whole
    assert {line.rank for line in job.log_lines()} == {0}


def test_long_lines_and_characters_are_shown_whole(make: clusters.Make) -> None:
    shown, _ = live(
        make,
        """
        import sys, time
        import aid
        if aid.RANK == 0:
            print("a" * 400_000 + "!")
            print("ż学🚀" * 100_000 + "!")
        else:
            for byte in "zażółć 学习 🚀!\\n".encode():  # a character in pieces
                sys.stdout.buffer.write(bytes([byte]))
                sys.stdout.buffer.flush()
                time.sleep(0.002)
        """,
        hosts=2,
        processes=1,
    )
    lines = shown.splitlines()
    assert lines.count("[algo-1:rank 0] " + "a" * 400_000 + "!") == 1
    assert lines.count("[algo-1:rank 0] " + "ż学🚀" * 100_000 + "!") == 1
    assert lines.count("[algo-2:rank 1] zażółć 学习 🚀!") == 1
    assert "\ufffd" not in shown


def test_progress_bars_and_an_unterminated_last_line(make: clusters.Make) -> None:
    shown, job = live(
        make,
        """
        import sys, time
        for step in range(1, 4):
            sys.stdout.write(f"\\rstep {step}/3")
            sys.stdout.flush()
            time.sleep(0.02)
        sys.stdout.write("\\nno newline at the end")
        """,
        processes=1,
    )
    assert clusters.raw_log(job, 0) == b"\rstep 1/3\rstep 2/3\rstep 3/3\nno newline at the end"
    assert clusters.printed(job) == ["", "step 1/3", "step 2/3", "step 3/3", "no newline at the end"]
    lines = [line for line in shown.splitlines() if line.startswith("[algo-1:rank 0]")]
    assert lines[-2:] == ["[algo-1:rank 0] step 3/3", "[algo-1:rank 0] no newline at the end"]
    assert "\r" not in shown  # nothing overwrites anything in a file


def test_what_is_printed_is_shown_at_once(make: clusters.Make) -> None:
    """Live: a line is on the caller's screen while its script still runs."""
    caller = clusters.Caller(
        'estimator.fit(job_name="job-1")',
        make(
            """
            import aid
            print("first")  # not flushed
            aid.wait_for("seen")
            print("second")
            """,
            hosts=2,
            processes=1,
        ),
        make.folder / "caller",
    )

    def times(word: str) -> int:  # in lines of their own, or in one for both ranks
        found = re.findall(rf"\[algo-\d:rank \d(?: ×(\d))?\] {word}\n", caller.output.read_text())
        return sum(int(count or 1) for count in found)

    clusters.until(lambda: times("first") == 2)
    make.mark("seen")
    assert caller.wait() == 0
    assert times("second") == 2


def test_the_last_words_of_a_rank_that_dies_are_kept(make: clusters.Make) -> None:
    """What was written before a kill arrives, also the part without a newline."""
    for _ in range(3):
        with pytest.raises(TrainingJobError) as caught:
            make.run(
                """
                import os, sys
                os.write(1, b"x" * 100_000 + b"\\n" + b"y" * 500)
                os.kill(os.getpid(), 9)
                """,
                processes=2,
            )
        first = caught.value.rank
        assert first is not None
        assert clusters.raw_log(caught.value.job, first) == b"x" * 100_000 + b"\n" + b"y" * 500


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


@shapes.every
def test_metrics_come_from_the_lines(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.run(
        """
        import aid
        for step in range(3):
            print(f"step {step} loss: {1 / (step + 1 + aid.RANK):.3f}", flush=True)
        aid.mark(f"said-{aid.RANK}")
        for rank in (1, 2) if aid.RANK == 0 and "chief" in aid.os.environ.get("TF_CONFIG", "") else ():
            aid.wait_for(f"said-{rank}")
        """,
        **shape.settings,
        metric_definitions=[{"Name": "loss", "Regex": r"loss: ([0-9.]+)"}],
    )
    frame = job.metrics()
    for rank, (host, _) in enumerate(shape.ranks):
        mine = frame[frame["rank"] == rank]
        assert set(mine["host"]) == {host}
        assert list(mine["name"]) == ["loss"] * 3
        assert list(mine["value"]) == [round(1 / (step + 1 + rank), 3) for step in range(3)]
    assert job.describe()["FinalMetricDataList"][0]["MetricName"] == "loss"


def test_metrics_that_a_regex_cuts_or_misses(make: clusters.Make) -> None:
    regexes = {"loss": r"loss: ([0-9.]+)", "acc": r"acc.*?([0-9.]+)", "f1": "'f1': ([0-9.]+)"}
    job = make.run(
        """
        print("loss: 7.5e-05 acc: -0.3", flush=True)
        print({"f1": "0.69"})
        """,
        metric_definitions=[{"Name": name, "Regex": regex} for name, regex in regexes.items()],
    )
    found = {one["MetricName"]: one["Value"] for one in job.describe()["FinalMetricDataList"]}
    assert found == {"loss": 7.5e-05, "acc": 0.3}
    cut, missed = job.warnings[-2:]
    assert cut.startswith("metric 'acc': ") and " captured '0.3', only a part of '-0.3': " in cut
    assert missed.startswith("metric 'f1': ") and missed.endswith("""is "{'f1': '0.69'}".""")
