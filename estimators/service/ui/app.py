"""Define the routes of the web interface and their handlers, and serve the pages on the loopback interface."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from estimators.job.errors import ConfigurationError, FleetfitError, JobNotFoundError, JobUnreachableError
from estimators.records.record import JobRecord
from estimators.results.html import render
from estimators.results.listing import JobList
from estimators.service import web
from estimators.service.ui import actions, comparing, files, fleet, job_page, jobs_page
from estimators.service.ui.access import ENTRANCE, Access, Gate, cookie_name
from estimators.service.ui.following import LEVELS, Wanted, follow, whole_log
from estimators.tuning.record import TuningRecord

#: How long open pages may delay the shutdown, in seconds.
_GRACE_S = 1
#: The maximum length of the text that is searched in a log, in characters.
_LONGEST = 500


class Console:
    """The handlers of the web interface's pages.

    Args:
        access: The secrets that requests are checked against.
        port: The port of this server.
        ending: An event that is set when the server ends.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
    """

    def __init__(self, access: Access, port: int, ending: threading.Event, home: Path | None) -> None:
        self._access = access
        self._port = port
        self._ending = ending
        self._home = home
        self._jobs = JobList(home)
        #: For jobs whose checkpoints were verified: job -> checkpoint -> the checkpoint's damage, or None if intact.
        self._verified: dict[str, dict[str, str | None]] = {}
        # Read in advance, so that the first request need not wait for the records of thousands of jobs.
        threading.Thread(target=self._jobs.summaries, name="jobs", daemon=True).start()

    def routes(self) -> list[Route | Mount]:
        """Return the routes of all pages."""
        return [
            Route(ENTRANCE + "{token}", self.enter),
            Route("/", self.jobs),
            Route("/compare", self.compare),
            Route("/compare/series", self.compare_series),
            Route("/hosts", self.hosts),
            Route("/studies", self.studies),
            Route("/studies/{name}", self.study),
            Route("/studies/{name}/series", self.study_series),
            Route("/jobs/{name}", self.job),
            Route("/jobs/{name}/series", self.series),
            Route("/jobs/{name}/stream", self.stream),
            Route("/jobs/{name}/log.txt", self.log),
            Route("/jobs/{name}/plan", self.plan),
            Route("/jobs/{name}/provenance", self.provenance),
            Route("/jobs/{name}/files/{path:path}", self.file),
            Route("/jobs/{name}/{action}", self.act, methods=["POST"]),
            Mount("/assets", StaticFiles(directory=Path(__file__).parent / "assets")),
        ]

    # --- access ---

    def enter(self, request: Request) -> Response:
        """Check the link's token, and set the cookie."""
        cookie = self._access.redeem(request.path_params["token"])
        if cookie is None:
            raise HTTPException(403, "This link was used already. Start `fleetfit ui` again for a new link.")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie_name(self._port), cookie, httponly=True, samesite="strict")
        return answer

    # --- many jobs ---

    def jobs(self, request: Request) -> Response:
        """Show the list of jobs."""
        return HTMLResponse(jobs_page.html(self._jobs, self._home, request.query_params))

    def compare(self, request: Request) -> Response:
        """Show a comparison of jobs."""
        return HTMLResponse(comparing.html(_chosen(request), self._home))

    def compare_series(self, request: Request) -> Response:
        """Return the curves of the compared jobs."""
        return JSONResponse(comparing.series(_chosen(request), self._home))

    def hosts(self, request: Request) -> Response:
        """Show the hosts of all running jobs."""
        known, _ = self._jobs.summaries()
        running = [job["name"] for job in known if job["status"] in ("InProgress", "Stopping")]
        return HTMLResponse(fleet.hosts_html(running, self._home))

    def studies(self, request: Request) -> Response:
        """Show the list of studies (hyperparameter tuning jobs)."""
        return HTMLResponse(fleet.studies_html(self._home))

    def study(self, request: Request) -> Response:
        """Show one study."""
        return HTMLResponse(fleet.study_html(self._study(request)))

    def study_series(self, request: Request) -> Response:
        """Return the curve of a study."""
        return JSONResponse(fleet.study_series(self._study(request)))

    def _study(self, request: Request) -> TuningRecord:
        return TuningRecord.open(request.path_params["name"], self._home)

    # --- one job ---

    def job(self, request: Request) -> Response:
        """Show a job."""
        record = self._record(request)
        verified = self._verified.get(record.name)
        return HTMLResponse(job_page.html(record, token=self._access.form_token, verified=verified))

    def series(self, request: Request) -> Response:
        """Return the curves of a job."""
        kind = request.query_params.get("kind", "script")
        if kind not in ("script", "system"):
            raise HTTPException(400, "kind must be script or system.")
        return JSONResponse(job_page.series(self._record(request), kind))

    def plan(self, request: Request) -> Response:
        """Show the plan of a job."""
        return HTMLResponse(job_page.plan_html(self._record(request)))

    def provenance(self, request: Request) -> Response:
        """Show the provenance of a job."""
        return HTMLResponse(job_page.provenance_html(self._record(request)))

    async def stream(self, request: Request) -> Response:
        """Stream a job's log, and notices of other changes."""
        rank = request.query_params.get("rank", "")
        if rank and not (rank.isascii() and rank.isdecimal() and len(rank) < 8):
            raise HTTPException(400, "rank must be a whole number.")
        level = request.query_params.get("level", "")
        if level and level not in LEVELS:
            raise HTTPException(400, f"level must be one of {', '.join(LEVELS)}.")
        text = request.query_params.get("q", "")
        if len(text) > _LONGEST:
            raise HTTPException(400, f"The search text may have at most {_LONGEST} characters.")
        wanted = Wanted(rank=int(rank) if rank else None, text=text, level=level)
        record = await run_in_threadpool(self._record, request)
        return StreamingResponse(follow(record, wanted, self._ending), media_type="text/event-stream")

    def log(self, request: Request) -> Response:
        """Send the whole log of a job."""
        record = self._record(request)
        return StreamingResponse(
            whole_log(record),
            media_type="text/plain",
            headers={"content-disposition": f'attachment; filename="{record.name}.txt"'},
        )

    def file(self, request: Request) -> Response:
        """Send a file of a job as a download, so that the browser does not display the file."""
        found = files.locate(self._record(request), request.path_params["path"])
        if found is None:
            raise HTTPException(404, "The job has no such file.")
        return FileResponse(found, media_type="application/octet-stream", filename=found.name)

    async def act(self, request: Request) -> Response:
        """Execute the action of a form, and redirect to the affected job."""
        form = await actions.read_form(request)
        if not self._access.admits_form(form.get("token", "")):
            raise HTTPException(403, "This form comes from an earlier `fleetfit ui`: reload the page.")
        name = request.path_params["action"]
        record = await run_in_threadpool(self._record, request)
        if name == "verify":
            self._verified[record.name] = await run_in_threadpool(actions.verify, record)
            return RedirectResponse(f"/jobs/{record.name}#kept-title", 303)
        action = actions.ACTIONS.get(name)
        if action is None:
            raise HTTPException(404, "There is no such action.")
        return RedirectResponse(f"/jobs/{await run_in_threadpool(action, record, form)}", 303)

    def _record(self, request: Request) -> JobRecord:
        return JobRecord.open(request.path_params["name"], self._home)


@contextlib.contextmanager
def serving(port: int = 0, home: Path | None = None) -> Iterator[str]:
    """Serve the pages on the loopback interface during a ``with`` block.

    Args:
        port: The port number. If 0, a free port is chosen.
        home: The folder to use instead of ``$FLEETFIT_HOME``.

    Yields:
        The URL that opens the pages. The URL works only once.

    Raises:
        BackendError: the port is in use.
    """
    listener = web.listen(port)
    port = listener.getsockname()[1]
    access, ending = Access(), threading.Event()
    console = Console(access, port, ending, home)
    handlers = {FleetfitError: _refused, HTTPException: _refused}
    pages = Gate(Starlette(routes=console.routes(), exception_handlers=handlers), access, port)
    with web.Server(pages, listener, _GRACE_S):
        try:
            yield f"http://{web.HOST}:{port}{ENTRANCE}{access.token}"
        finally:
            ending.set()


def _chosen(request: Request) -> list[str]:
    return [name.strip() for name in request.query_params.getlist("job") if name.strip()]


def _refused(request: Request, error: Exception) -> Response:
    """Show an error page with the reason."""
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    else:
        status = 404 if isinstance(error, JobNotFoundError) else 500
        status = 409 if isinstance(error, ConfigurationError | JobUnreachableError) else status
        text = str(error)
    title = "This cannot be shown" if request.method == "GET" else "The action failed"
    return HTMLResponse(render("service/ui/templates/error", title=title, text=text), status)
