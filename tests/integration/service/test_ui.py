"""The pages in a real browser: what they show and do, who may see them, and that only their own is markup."""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import APIResponse, Browser, BrowserContext, expect
from playwright.sync_api import Page as Tab

from container.checkpoint.manifest import Progress
from container.checkpoint.store import CheckpointContents, CheckpointStore
from container.contract.failures import Cause, Failure
from container.contract.wire import Event, Piece
from estimators import ElasticHorovod, TensorFlow
from estimators.job.errors import TrainingJobError
from estimators.records import status as statuses
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.ui.app import serving
from estimators.testing import FakeOutcome
from estimators.tuner import ContinuousParameter, HyperparameterTuner

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"

#: Nothing is wider than the window, and no curve lies upon another; the page draws them anew when its width changes.
FITS = """() => {
  const places = [...document.querySelectorAll(".curves .uplot")].map((plot) => plot.getBoundingClientRect());
  return document.documentElement.scrollWidth <= innerWidth && places.every((one, number) => one.right <= innerWidth
    && places.slice(number + 1).every((other) => one.right <= other.left || one.bottom <= other.top));
}"""

#: Says that it runs, waits until it is told to end, and ends as it is told.
WAITING = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--folder") + 1])
attempt = len(list(folder.glob("attempt-*")))
(folder / f"attempt-{attempt}").touch()
print(f"attempt {attempt} waits", flush=True)
while not (folder / "told").exists():
    time.sleep(0.01)
print("it was told", flush=True)
"""

#: Waits to be ended.
ENDLESS = "import signal; print('it waits', flush=True); signal.pause()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose ``home`` is that of all jobs of this module."""
    found = tmp_path_factory.mktemp("ui")
    yield found
    clusters.kill_everything_of(found / "home")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    with serving(home=folder / "home") as link:
        yield link


@pytest.fixture(scope="module")
def context(browser: Browser, served: str) -> Iterator[BrowserContext]:
    """The browser that has opened the link."""
    found = browser.new_context(accept_downloads=True)
    found.new_page().goto(served)
    yield found
    found.close()


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Tab]:
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert page.title() != "taken"
    page.close()
    assert complaints == []


@pytest.fixture
def own_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that a test starts are those of the page."""
    monkeypatch.setenv("FLEETFIT_HOME", str(folder / "home"))


def faked(folder: Path, outcome: FakeOutcome, **arguments: object) -> TensorFlow:
    (folder / "train.py").touch()
    return TensorFlow(
        entry_point="train.py", source_dir=str(folder), instance_type="local_fake",
        run_options=outcome.run_options(), **arguments,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def jobs(folder: Path) -> None:
    """``good``, ``bad`` and ``other``, which are over, and the study ``search``."""
    code = folder / "faked"
    code.mkdir()
    lines = [HOSTILE, *(f"line {number}" for number in range(1500)), "ERROR: too hot", "DeprecationWarning: too old"]
    metrics = {"loss": [3.0, 2.0, 1.0], HOSTILE: [1.0]}
    failure = Failure(
        cause=Cause.PROCESS, message=HOSTILE, host="algo-1", rank=0, process="rank 0", exit_code=3,
        traceback=f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: {HOSTILE}',
        hints=("give it less",),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEETFIT_HOME", str(folder / "home"))
        secret = {"environment": {"API_TOKEN": "seven-of-nine"}, "hyperparameters": {"rate": 0.1}}
        lines.append("the token is seven-of-nine")
        faked(code, FakeOutcome(lines=lines, metrics=metrics, model={"model.txt": "weights"}), **secret).fit(
            job_name="good", logs=False
        )
        faked(code, FakeOutcome(metrics={"loss": [4.0, 2.5]}), hyperparameters={"rate": 0.2}).fit(
            job_name="other", logs=False
        )
        with contextlib.suppress(TrainingJobError):
            faked(code, FakeOutcome(lines=[HOSTILE], failure=failure)).fit(job_name="bad", logs=False)
        HyperparameterTuner(
            faked(code, FakeOutcome(metrics={"loss": [2.0, 1.0]})), "loss", {"rate": ContinuousParameter(0.1, 0.2)},
            objective_type="Minimize", strategy="Random", max_jobs=2, max_parallel_jobs=2,
        ).fit(job_name="search")  # fmt: skip


def address(served: str, path: str) -> str:
    return served.partition("/enter/")[0] + path


def get(url: str, data: bytes | None = None, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_who_opened_the_link_sees_it(tmp_path: Path) -> None:
    with serving(home=tmp_path / "home") as link:
        root = address(link, "/")
        assert get(root) == 403
        assert get(root, Cookie=f"fleetfit-{root.split(':')[2][:-1]}=guess") == 403
        assert get(link[:-1] + "!") == 403
        assert get(link, Host="rebound.example") == 421
        assert get(link) == 403, "the redirect is followed without the cookie, which the link became"
        assert get(link) == 403, "the link was used"


def test_only_the_pages_own_forms_change_anything(context: BrowserContext, served: str, jobs: None) -> None:
    (cookie,) = context.cookies()
    mine = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    root, known = address(served, ""), sorted(folder.name for folder in served_jobs(served, context))
    tab = context.new_page()
    tab.goto(address(served, "/jobs/good"))
    token = tab.locator('input[name="token"]').first.get_attribute("value") or ""
    form = urllib.parse.urlencode({"token": token}).encode()
    target = f"{root}/jobs/good/rerun"
    assert get(target, form, Origin=root) == 403, "without the cookie"
    assert get(target, form, **mine) == 403, "not from a page"
    assert get(target, form, Origin="http://evil.example", **mine) == 403
    assert get(target, form, Origin="null", **mine) == 403
    assert get(target, b"token=guess", Origin=root, **mine) == 403
    assert get(target, b"x" * 100_000, Origin=root, **mine) == 409
    assert get(target, **mine) == 405, "a link does nothing"
    assert get(f"{root}/jobs/good/explode", form, Origin=root, **mine) == 404
    assert sorted(folder.name for folder in served_jobs(served, context)) == known
    # A page of another site, in the browser that has the cookie: a form that it sends by itself.
    tab.route("http://evil.example/", lambda route: route.fulfill(
        content_type="text/html",
        body=f'<form method="post" action="{target}"><input name="token" value="{token}"></form>'
        "<script>document.forms[0].submit()</script>",
    ))  # fmt: skip
    with tab.expect_response(target) as answer:
        tab.goto("http://evil.example/")
    assert answer.value.status == 403
    assert sorted(folder.name for folder in served_jobs(served, context)) == known
    tab.close()


def served_jobs(served: str, context: BrowserContext) -> list[Path]:
    tab = context.new_page()
    tab.goto(address(served, "/?sort=name"))
    names = tab.locator("tbody th").all_inner_texts()
    tab.close()
    return [Path(name) for name in names]


VIEWS = {
    "list": "/",
    "good": "/jobs/good",
    "bad": "/jobs/bad",
    "plan": "/jobs/good/plan",
    "provenance": "/jobs/good/provenance",
    "compare": "/compare?job=good&job=other&job=bad",
    "nothing": "/compare",
    "studies": "/studies",
    "study": "/studies/search",
    "hosts": "/hosts",
}
#: What is there when a view is whole.
WHOLE = {"good": "#curves canvas", "bad": "#log div", "compare": "#curves canvas", "study": "#curves canvas"}


@pytest.mark.parametrize("view", list(VIEWS))
def test_each_view_fits_and_is_accessible_in_both_themes(tab: Tab, served: str, jobs: None, view: str) -> None:
    tab.goto(address(served, VIEWS[view]))
    tab.locator(WHOLE.get(view, "h1")).first.wait_for()
    look_at(tab, view)


def look_at(tab: Tab, view: str) -> None:
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width in (390, 1400):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.wait_for_function(FITS)
            if "SCREENSHOTS" in os.environ:
                tab.screenshot(path=Path(os.environ["SCREENSHOTS"], f"{view}-{scheme}-{width}.png"), full_page=True)
        # What a theme changes are colours.
        found = Axe().run(tab, options={"runOnly": ["color-contrast"]} if scheme == "dark" else None)
        assert found.violations_count == 0, found.generate_report()


def test_the_list_is_searched_and_leads_to_a_comparison(tab: Tab, served: str, jobs: None) -> None:
    tab.goto(address(served, "/?q=OO&status=Completed"))
    assert tab.locator("tbody th").all_inner_texts() == ["good"]
    assert "loss 1" in tab.locator("tbody tr").inner_text()
    tab.goto(address(served, "/?sort=name"))
    for name in ("good", "other"):
        tab.get_by_label(f"Compare {name}").check()
    tab.get_by_role("button", name="Compare selected jobs").click()
    tab.locator("#curves canvas").first.wait_for()
    row = tab.get_by_role("row", name="hyperparameter rate")
    assert row.locator("td").all_inner_texts() == ["0.1", "0.2"]
    labels = tab.locator("#curves .u-legend .u-label").all_inner_texts()
    assert {"good rank 0", "other rank 0"} <= set(labels)
    tab.goto(address(served, "/studies/search"))
    assert tab.get_by_role("region", name="Table: trials").locator("tbody tr").count() == 2
    tab.get_by_label("smoothing").fill("0.9")
    tab.get_by_role("region", name="Table: trials").locator("tbody a").first.click()
    assert tab.inner_text("h1").startswith("search-00")


def test_a_log_is_searched_as_a_whole_and_by_level(tab: Tab, served: str, jobs: None) -> None:
    tab.goto(address(served, "/jobs/good"))
    log = tab.locator("#log div")
    log.filter(has_text="too old").wait_for()
    assert "earlier lines are not shown" in log.first.inner_text()
    expect(log.filter(has_text="seven")).to_have_count(0)
    expect(log.filter(has_text="the token is ***")).to_have_count(1)
    tab.get_by_label("Only lines with").fill("LINE 1.")
    expect(log).to_have_count(0)
    tab.get_by_label("Only lines with").fill("LINE 17")  # far before what is shown at first
    expect(log).to_have_count(1 + 10)
    tab.get_by_label("Only lines with").fill("")
    tab.get_by_label("Level").select_option("warning")
    expect(log).to_have_count(2)
    tab.get_by_label("Level").select_option("error")
    expect(log).to_have_count(1)
    assert "too hot" in log.inner_text()
    with tab.expect_download() as download:
        tab.get_by_role("link", name="The whole log").click()
    text = download.value.path().read_text()
    assert "line 17\n" in text and "the token is ***" in text and "seven" not in text


def test_a_failure_has_its_traceback_and_hints_as_text(tab: Tab, served: str, jobs: None) -> None:
    tab.goto(address(served, "/jobs/bad"))
    assert tab.get_by_role("region", name="Traceback").inner_text().endswith(f"ValueError: {HOSTILE}")
    assert "hint: give it less" in tab.inner_text("#failure")
    assert tab.get_by_text("Resume…").count() == 1
    answer = tab.request.get(address(served, "/jobs/goot"))
    assert answer.status == 404
    assert "Did you mean &#39;good&#39;?" in answer.text()


def test_checkpoints_are_verified_when_they_are_asked_for(tab: Tab, served: str, jobs: None, folder: Path) -> None:
    store = CheckpointStore(JobRecord.open("other", folder / "home").checkpoints_dir)
    store.lock()
    names = [
        store.write(CheckpointContents(progress=Progress(step=step), files={"one.bin": [memoryview(b"some bytes")]}))[0]
        for step in (1, 2)
    ]
    store.close()
    Path(store.directory, names[0], "one.bin").write_bytes(b"some bites")
    tab.goto(address(served, "/jobs/other"))
    table = tab.get_by_role("region", name="Table: checkpoints")
    assert [row.split("\t")[0] for row in table.locator("tbody tr").all_inner_texts()] == names[::-1]
    expect(table.get_by_text("not verified yet")).to_have_count(2)
    tab.get_by_role("button", name="Verify").click()
    expect(table.locator("tr", has_text=names[1])).to_contain_text("verified: every byte is unchanged")
    expect(table.locator("tr", has_text=names[0])).to_contain_text("damaged: ")
    tab.get_by_role("button", name="Verify again").wait_for()


def test_files_can_be_taken_but_only_the_jobs_own(tab: Tab, served: str, jobs: None, folder: Path) -> None:
    record = JobRecord.open("good", folder / "home")
    (record.output_dir / "page.html").write_text(HOSTILE)
    (record.output_dir / "leads-out").symlink_to(record.request_file)
    tab.goto(address(served, "/jobs/good"))
    with tab.expect_download() as download:
        tab.get_by_role("link", name="output/page.html").click()
    assert download.value.path().read_text() == HOSTILE
    assert tab.get_by_role("link", name="output/model.tar.gz").count() == 1
    assert tab.get_by_role("link", name="leads-out").count() == 0
    base = address(served, "/jobs/good/files/")
    assert tab.request.get(base + "result.json").status == 200
    for path in (
        "output/leads-out",
        "output/..%2frequest.json",
        "request.json",
        "output",
        "%2fetc/passwd",
        "output/no",
    ):
        assert tab.request.get(base + path).status == 404, path


def test_a_running_job_is_followed_stopped_resumed_and_run_again(
    tab: Tab, served: str, jobs: None, folder: Path, own_home: None
) -> None:
    code = folder / "waiting"
    code.mkdir()
    (code / "train.py").write_text(WAITING)
    (told := folder / "told").mkdir()
    job = TensorFlow(
        entry_point="train.py", source_dir=str(code), instance_type="local_process",
        hyperparameters={"folder": str(told)},
    ).fit(job_name="running", wait=False)  # fmt: skip
    tab.goto(address(served, "/jobs/running"))
    state = tab.locator("#state")
    tab.locator("#log div", has_text="attempt 0 waits").wait_for()
    expect(state).to_have_text("InProgress")
    tab.get_by_text("Stop…").click()
    tab.get_by_label("now, without time to save").check()
    tab.get_by_role("button", name="Stop the job").click()
    expect(state).to_have_text("Stopped")
    assert job.status == "Stopped"
    tab.get_by_text("Resume…").click()  # it comes when the job has ended, without loading the page
    tab.get_by_role("button", name="Resume the job").click()
    tab.locator("#log div", has_text="attempt 1 waits").wait_for()
    (told / "told").touch()
    tab.locator("#log div", has_text="it was told").wait_for()
    expect(state).to_have_text("Completed")
    expect(tab.locator("#facts")).to_contain_text("attempt 2")
    assert tab.inner_text("#gone") == ""
    expect(tab.locator("#rank option")).to_have_count(2)
    expect(tab.locator("#rank")).to_have_value("")  # what is chosen stays when the page learns of ranks
    tab.get_by_text("Run again…").click()
    tab.get_by_role("button", name="Start a new job").click()
    expect(state).to_have_text("Completed")
    name = tab.inner_text("h1")
    assert name.startswith("running-")
    tab.locator("#log div", has_text="attempt 2 waits").wait_for()
    assert "was told" in tab.inner_text("#log")
    # A button of a page that was loaded before: what does not fit any more is said.
    answer = posted(tab, served, "/jobs/running/resume")
    assert answer.status == 409
    assert "has completed: there is nothing to resume" in answer.text()


def posted(tab: Tab, served: str, path: str, **fields: str) -> APIResponse:
    """Send a form of the page that is open, without going where it leads."""
    token = tab.locator('input[name="token"]').first.get_attribute("value") or ""
    return tab.request.post(
        address(served, path), form={"token": token, **fields}, headers={"Origin": address(served, "")}
    )


def test_an_elastic_job_is_resized_and_interrupted(tab: Tab, served: str, folder: Path, own_home: None) -> None:
    code = folder / "elastic"
    code.mkdir()
    (code / "train.py").write_text(ENDLESS)
    job = TensorFlow(
        entry_point="train.py", source_dir=str(code), instance_type="local_process", instance_count=2,
        distribution=ElasticHorovod(min_hosts=1, max_hosts=3),
    ).fit(job_name="elastic", wait=False)  # fmt: skip
    try:
        tab.goto(address(served, "/jobs/elastic"))
        tab.locator("#log div", has_text="algo-2").first.wait_for()
        tab.get_by_text("Resize…").click()
        tab.get_by_role("spinbutton", name="Hosts").fill("3")
        tab.get_by_role("button", name="Resize the job").click()
        hosts = tab.locator("#facts svg[aria-label^='algo-']")
        expect(hosts).to_have_count(3, timeout=30_000)
        expect(tab.get_by_label("Changes of membership")).to_contain_text("algo-3 is started")
        answer = posted(tab, served, "/jobs/elastic/resize", hosts="9")
        assert answer.status == 409 and "3" in answer.text()
        answer = posted(tab, served, "/jobs/elastic/resize", hosts="many")
        assert answer.status == 409 and "is not a whole number" in answer.text()
        tab.goto(address(served, "/hosts"))
        assert tab.locator("tbody tr", has_text="elastic").count() == 3
        tab.goto(address(served, "/jobs/elastic"))
        tab.get_by_text("Interrupt a host…").click()
        tab.get_by_role("combobox", name="Host").select_option("algo-2")
        tab.get_by_label("Seconds of notice").fill("0")
        tab.get_by_role("button", name="Interrupt it").click()
        tab.locator("#facts svg[aria-label*='interrupted at']").wait_for()
        look_at(tab, "elastic")
    finally:
        job.stop(wait=True, grace=0.0)


@pytest.mark.soak
def test_thousands_of_jobs_a_million_lines_and_a_hundred_hosts(tab: Tab, served: str, folder: Path) -> None:
    name = "many-00000"
    for number in range(5000):
        record = JobRecord.create(f"many-{number:05d}", folder / "home")
        record.write_request({"TrainingJobName": record.name, "ResourceConfig": {"InstanceCount": 100}})
        status = statuses.new_status({"TrainingJobName": record.name}, 1.7e9 + number)
        for step in (SecondaryStatus.TRAINING, SecondaryStatus.COMPLETED):
            status = statuses.transition(status, step, 1.7e9 + number + 9)
        record.write_status(status)
        if number == 0:
            writer = LogWriter(record)
            for line in range(1_000_000):
                writer.write(Piece("algo-1", "rank 0", b"line %d of a long log\n" % line))
            writer.write(Piece("algo-1", "rank 0", f"{HOSTILE}\n".encode()))
            writer.write(Piece("algo-1", "rank 0", b"ERROR: the only one\n"))
            writer.flush()
            record.append_events(
                Event(
                    kind=kind,
                    host=f"algo-{host}",
                    time_ns=int((1.7e9 + at + host / 100) * 1e9),
                    rank=host - 1,
                    data=data,
                )
                for kind, at, data in (
                    ("process_started", 1, {}),
                    ("resources", 2, {"cpu_percent": 50.0}),
                    ("resources", 3, {"cpu_percent": 70.0}),
                    ("process_ended", 5, {"exit_code": 0}),
                )
                for host in range(1, 101)
            )
        record.release()
    tab.goto(address(served, "/?q=many"))
    tab.get_by_text("5000 of").wait_for()
    assert tab.locator("tbody tr").count() == 100
    tab.get_by_role("link", name="Next page").click()
    tab.get_by_text("page 2 of 50").wait_for()
    tab.goto(address(served, f"/jobs/{name}"))
    log = tab.locator("#log div")
    log.filter(has_text="the only one").wait_for()
    assert tab.locator("#facts svg[aria-label^='algo-']").count() == 100
    tab.locator("#system canvas").wait_for()
    look_at(tab, "many")
    tab.get_by_label("Only lines with").fill("line 77777")
    expect(log).to_have_count(11, timeout=60_000)
    tab.get_by_label("Only lines with").fill("")
    tab.get_by_label("Level").select_option("error")
    expect(log).to_have_count(1, timeout=60_000)


def test_an_open_page_does_not_hold_up_the_end(
    browser: Browser, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = JobRecord.create("job-1", tmp_path / "home")
    with serving(home=tmp_path / "home") as link:
        tab = browser.new_context().new_page()
        tab.goto(link)
        with tab.expect_response("**/stream*"):
            tab.get_by_role("link", name="job-1").click()
        tab.context.close()
    record.release()
    assert [line for line in caplog.messages if "Exception" in line or "Cancel" in line] == []
