"""What is removed, and what never is."""

import fcntl
import os
import time
from pathlib import Path

import pytest
from clean_homes import DAY, age, isolate, make_job, names

from container.system import locks
from estimators.cli import clean
from estimators.cli.clean import ItemKind, Selection
from estimators.job.errors import ConfigurationError, JobNotFoundError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.tuning.record import TuningRecord, tuning_names


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(tmp_path, monkeypatch)


def test_the_oldest_jobs_go_until_enough_is_free() -> None:
    for name, days in (("new", 1), ("middle", 5), ("old", 9)):
        make_job(name, ended_days_ago=days, size=1_000_000)
    held = clean.finished_jobs()
    assert names(held) == ["new", "middle", "old"]
    assert all(item.bytes >= 1_000_000 for item in held)
    assert names(clean.find(clean.Selection(free_bytes=500_000))) == ["old"]
    assert names(clean.find(clean.Selection(free_bytes=1_500_000))) == ["old", "middle"]
    assert names(clean.find(clean.Selection(free_bytes=1e12, keep=1))) == ["old", "middle"]
    assert names(clean.find(clean.Selection(free_bytes=1e12, older_than_s=7 * DAY))) == ["old"]


@pytest.mark.parametrize(("text", "size"), [("500", 500), ("2k", 2000), ("1.5 GB", 1.5e9), ("20G", 20e9)])
def test_sizes(text: str, size: float) -> None:
    assert clean.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 7 * DAY), ("2w", 14 * DAY), ("1.5", 1.5 * DAY)],
)
def test_ages(text: str, seconds: float) -> None:
    assert clean.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "7x", "seven"])
def test_ages_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="7d"):
        clean.parse_age(text)


def test_nothing_is_selected_by_default() -> None:
    make_job("old", ended_days_ago=400)
    assert clean.find(Selection()) == []


def test_a_job_that_goes_on_at_sagemaker_is_no_old_job() -> None:
    """Nobody follows it at the moment; its name is how it is found again."""
    record = make_job("mine", ended_days_ago=400)
    status = statuses.new_status({"TrainingJobName": "mine"}, time.time() - 400 * DAY)
    record.write_status(statuses.with_own(status, elsewhere=True, taken=True))
    assert clean.find(Selection(keep=0, older_than_s=0, leftovers=False)) == []


def test_by_age_and_by_number() -> None:
    for days in range(5):
        make_job(f"job-{days}", ended_days_ago=days + 0.5)
    assert sorted(names(clean.find(Selection(older_than_s=3 * DAY)))) == ["job-3", "job-4"]
    assert sorted(names(clean.find(Selection(keep=2)))) == ["job-2", "job-3", "job-4"]
    assert names(clean.find(Selection(keep=4, older_than_s=DAY))) == ["job-4"]
    assert sorted(names(clean.find(Selection(keep=0)))) == [f"job-{days}" for days in range(5)]
    assert names(clean.find(Selection(keep=5))) == []


def test_by_name() -> None:
    make_job("one")
    make_job("two")
    assert names(clean.find(Selection(jobs=("one", "one")))) == ["one"]
    with pytest.raises(JobNotFoundError, match="two"):
        clean.find(Selection(jobs=("tow",)))


def test_a_running_job_is_never_removed() -> None:
    record = JobRecord.create("running")
    assert names(clean.find(Selection(keep=0))) == []
    with pytest.raises(ConfigurationError, match="fleetfit stop running"):
        clean.find(Selection(jobs=("running",)))
    record.release()


def test_a_job_that_begins_to_run_after_the_look_is_left_alone() -> None:
    record = make_job("job")
    items = clean.find(Selection(keep=0))
    descriptor = os.open(record.lock_file, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    [removal] = clean.remove(items)
    assert removal.error == "it is running"
    assert record.path.is_dir()
    os.close(descriptor)
    assert [removal.error for removal in clean.remove(items)] == [None]
    assert not record.path.exists()
    assert os.listdir(record.path.parent) == []


def test_sizes_are_those_of_the_disk() -> None:
    record = make_job("job", size=1 << 20)
    [item] = clean.find(Selection(keep=0))
    assert (1 << 20) <= item.bytes < (1 << 20) + 600_000
    target = record.path / "target"
    target.write_bytes(b"x" * 100_000)
    before = clean.size_of(record.path)
    os.link(target, record.path / "again")
    os.symlink("/usr", record.path / "link")
    assert clean.size_of(record.path) - before < 10_000


def test_links_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("x")
    record = make_job("job")
    os.symlink(data, record.path / "data")
    clean.remove(clean.find(Selection(keep=0)))
    assert (data / "precious").exists()
    assert not record.path.exists()


def test_a_model_of_folders_in_each_other_is_removed_whole(home: Path) -> None:
    record = make_job("deep")
    folder = record.tree("algo-1").model
    folder.mkdir(parents=True)
    current = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("nested", dir_fd=current)
        below = os.open("nested", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    assert [removal.error for removal in clean.remove(clean.find(Selection(jobs=("deep",), leftovers=False)))] == [None]
    assert list((home / "jobs").iterdir()) == []


def test_a_job_whose_status_is_damaged_can_be_removed() -> None:
    record = make_job("job")
    record.status_file.write_text("damaged")
    assert names(clean.find(Selection(keep=0))) == ["job"]
    assert names(clean.find(Selection(older_than_s=DAY))) == []


def test_caches(tmp_path: Path) -> None:
    for name in ("wheels", "digests", "locks"):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "file").write_text("x")
    items = clean.find(Selection(caches=True))
    assert sorted(names(items, ItemKind.CACHE)) == ["digests", "wheels"]
    clean.remove(items)
    assert os.listdir(tmp_path / "cache") == ["locks"]
    assert names(clean.find(Selection()), ItemKind.CACHE) == []


def test_half_made_records_are_leftovers(home: Path) -> None:
    make_job("job")
    aside = home / "jobs" / ".job.0123456789ab"
    aside.mkdir()
    assert clean.find(Selection()) == [], "it may be in the making"
    age(aside)
    assert names(clean.find(Selection()), ItemKind.FOLDER) == [aside.name]
    assert [removal.error for removal in clean.remove(clean.find(Selection()))] == [None]
    assert not aside.exists()


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (300, "5 min"), (10_000, "2 h"), (200_000, "2 days")])
def test_ages_read_well(seconds: float, text: str) -> None:
    assert clean.format_age(seconds) == text


def test_folders_of_containers_that_are_not_kept_any_more(tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    for name in ("over", "kept", "broken"):
        (warm / name / "secrets" / "algo-1").mkdir(parents=True)
    for name in ("over", "kept"):
        (warm / name / "job").write_text(str(tmp_path / name))
        (tmp_path / name).mkdir()
    lock = locks.take(tmp_path / "kept" / "lock")  # as its supervisor does
    assert lock is not None
    found = [item for item in clean.find(clean.Selection(), home=tmp_path) if item.name.startswith("warm/")]
    assert sorted(item.name for item in found) == ["warm/broken", "warm/over"]
    assert all(removal.error is None for removal in clean.remove(found))
    assert [path.name for path in warm.iterdir()] == ["kept"]
    os.close(lock)


def make_study(home: Path, name: str, trials: list[str], *, ended_days_ago: float | None = 0.0) -> TuningRecord:
    """A tuning job on record; None: one that is not over."""
    record = TuningRecord.stage(name, home)
    over = ended_days_ago is not None
    ended = {"HyperParameterTuningEndTime": time.time() - (ended_days_ago or 0.0) * DAY} if over else {}
    record.write("status", {"HyperParameterTuningJobStatus": "Completed" if over else "InProgress", **ended})
    record.write("trials", {"trials": [{"number": place, "job": job} for place, job in enumerate(trials)]})
    record = record.publish(name)
    for job in trials:
        make_job(job, ended_days_ago=ended_days_ago or 0.0)
    return record


def test_a_tuning_job_goes_with_the_last_of_its_trials(home: Path) -> None:
    make_study(home, "old", ["old-001", "old-002"], ended_days_ago=9)
    make_study(home, "new", ["new-001"], ended_days_ago=1)
    items = clean.find(Selection(older_than_s=5 * DAY))
    assert (sorted(names(items)), names(items, ItemKind.TUNING)) == (["old-001", "old-002"], ["old"])
    assert names(clean.find(Selection(keep=2)), ItemKind.TUNING) == []  # one of its trials stays
    assert [removal.error for removal in clean.remove(items)] == [None] * 3
    assert tuning_names(home) == ["new"]
    assert names(clean.find(Selection(keep=0)), ItemKind.TUNING) == ["new"]


def test_a_tuning_job_whose_trials_are_elsewhere_goes_by_its_own_age(home: Path) -> None:
    """On SageMaker, say: no trial of it was on record here."""
    record = make_study(home, "there", [], ended_days_ago=3)
    record.write("trials", {"trials": [{"number": 0, "job": "there-001"}]})
    found = [Selection(keep=5), Selection(free_bytes=1e9), Selection(older_than_s=5 * DAY)]
    assert [names(clean.find(selection), ItemKind.TUNING) for selection in found] == [[], [], []]
    found = [Selection(keep=0), Selection(older_than_s=2 * DAY)]
    assert [names(clean.find(selection), ItemKind.TUNING) for selection in found] == [["there"], ["there"]]


def test_a_tuning_job_goes_by_name_with_its_trials(home: Path) -> None:
    make_job("other")
    make_study(home, "study", ["study-001", "study-002"])
    clean.remove(clean.find(Selection(jobs=("study-001",))))
    items = clean.find(Selection(tunings=("study",)))
    assert (names(items), names(items, ItemKind.TUNING)) == (["study-002"], ["study"])
    with pytest.raises(JobNotFoundError, match="study"):
        clean.find(Selection(tunings=("stduy",)))


def test_trials_of_a_tuning_job_that_is_not_over_stay(home: Path) -> None:
    """Its process may have been killed: who goes on would train them again."""
    make_study(home, "study", ["study-001"], ended_days_ago=None)
    items = clean.find(Selection(keep=0))
    assert (names(items), names(items, ItemKind.TUNING)) == ([], [])
    for selection in (Selection(jobs=("study-001",)), Selection(tunings=("study",))):
        with pytest.raises(ConfigurationError, match="fleetfit tuning study --stop"):
            clean.find(selection)


def test_half_made_tuning_jobs_are_leftovers(home: Path) -> None:
    record = TuningRecord.stage("study", home)
    os.utime(record.path, (time.time() - DAY, time.time() - DAY))
    os.utime(record.path / "template", (time.time() - DAY, time.time() - DAY))
    assert names(clean.find(Selection()), ItemKind.FOLDER) == [record.path.name]
