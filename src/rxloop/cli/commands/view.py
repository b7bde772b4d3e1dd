"""Command `view`, and the implementation of `rxloop demo --view`: the viewer on a local server."""

from __future__ import annotations

import asyncio
import runpy
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rxloop.agents.agent import Agent
from rxloop.cli import options
from rxloop.cli.database import open_database
from rxloop.cli.demo import find_program
from rxloop.cli.installation import check_server_packages
from rxloop.cli.terminal import report_errors, write
from rxloop.evals.case import Case
from rxloop.runtime.runtime import Runtime
from rxloop.storage import MemoryEventLog

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rxloop.pipeline.event_log import EventLog

HOST = "127.0.0.1"
_DEMO_KEY = "demo"


def view(
    db: options.Database = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Port; 0 selects a free port.")
    ] = 8321,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="FILE", help="JSONL file to which the page can append runs, as cases."),
    ] = None,
) -> None:
    """Show recorded runs in a browser, and follow active ones.

    Starts a local server with the viewer page and a read-only HTTP API for the database. Active runs of other processes
    are updated live. Ctrl-C stops the server.

    Exit codes: 0 stopped, 1 error, 2 invalid usage.
    """
    with report_errors():
        check_server_packages("rxloop view")
        if cases is not None and cases.exists():
            # An invalid file is reported now instead of by the first case.
            Case.read(cases)
        asyncio.run(_serve(open_database(db), port, cases, opens=not no_open))


async def _serve(
    database: AbstractAsyncContextManager[EventLog], port: int, cases: Path | None, *, opens: bool
) -> None:
    async with database as log, Runtime({}, log=log) as runtime:
        await _serve_runtime(runtime, port, "", cases=cases, opens=opens)


async def _serve_runtime(
    runtime: Runtime,
    port: int,
    place: str,
    *,
    opens: bool,
    cases: Path | None = None,
    start: Callable[[], Awaitable[None]] | None = None,
) -> None:
    # Imported lazily because the extra is optional.
    from rxloop.cli.service.process import get_url, open_listener, serve_until_signal
    from rxloop.server import Shutdown

    app, adapters = create_viewer(runtime, cases)
    if start is not None:
        app = StartOnRequest(app, start)
    with open_listener(HOST, port) as listener:
        url = f"{get_url(listener)}/view/{place}"
        await serve_until_signal(app, listener, Shutdown(*adapters, seconds=0), lambda: _announce(url, opens=opens))


def view_demo(question: str, port: int, *, opens: bool) -> None:
    """Run the demo agent and serve the viewer for its run.

    Args:
        question: Prompt. If empty, the default question of the demo is used.
        port: Listen port; 0 selects a free port.
        opens: True to open the browser.
    """
    with report_errors():
        check_server_packages("rxloop demo --view")
        program = runpy.run_path(str(find_program()))
        asyncio.run(_serve_demo(program["make_agent"](), question or program["QUESTION"], port, opens=opens))


async def _serve_demo(agent: Agent[Any, Any], question: str, port: int, *, opens: bool) -> None:
    async with agent, Runtime({"demo": agent}, log=MemoryEventLog()) as runtime:
        task_id = runtime.derive_run_id("demo", _DEMO_KEY, None)

        async def start() -> None:
            await runtime.start("demo", question, key=_DEMO_KEY)

        await _serve_runtime(runtime, port, f"#/r/{task_id}", opens=opens, start=start)


def _announce(url: str, *, opens: bool) -> None:
    write(f"Viewer at {url}\n")
    sys.stdout.flush()
    if opens:
        open_browser(url)


def open_browser(url: str) -> None:
    """Open a URL in the default browser, if there is one, without blocking the event loop."""
    # Some browsers block until their window is closed.
    asyncio.get_running_loop().run_in_executor(None, webbrowser.open, url)


def create_viewer(runtime: Runtime, cases: Path | None = None) -> tuple[ASGIApp, list[Any]]:
    """Create an application, and return it with its adapters. Without agents, it is read-only.

    Requests have access to all runs and to internal data, so the application must only be reachable locally.

    Args:
        runtime: Runtime with the event log.
        cases: JSONL file to which clients may append runs.
    """
    from starlette.responses import RedirectResponse

    from rxloop.cli.service.adapters import LocalNames, MountedAdapter, create_application
    from rxloop.server import Principal, api, viewer

    reader = Principal("", frozenset({"others", "internal", "effects", "cases"}))

    def authenticate(request: HTTPConnection) -> Principal:
        return reader

    adapters = [api(runtime, auth=authenticate, cases=cases), viewer(runtime)]
    mounted = [
        MountedAdapter("", "the API", adapters[0], owns_prefix=True),
        MountedAdapter("/view", "the viewer", adapters[1], owns_prefix=False),
    ]
    app = create_application(mounted, (), HOST, keys=True)

    async def redirect_root(scope: Scope, receive: Receive, send: Send) -> None:
        # People type the address without its path.
        is_root = scope["type"] == "http" and scope["path"] == "/"
        await (RedirectResponse("view/") if is_root else app)(scope, receive, send)

    # The page shows actions if there are agents.
    return LocalNames(redirect_root if runtime.agents else ReadOnly(redirect_root), HOST, ()), adapters


class StartOnRequest:
    """Middleware that starts a run when a client first requests runs.

    The run of the demo takes a few seconds, and browsers may need longer to start.
    """

    def __init__(self, app: ASGIApp, start: Callable[[], Awaitable[None]]) -> None:
        """Wrap an application.

        Args:
            app: Application.
            start: Starts the run. Requests that arrive at the same time may call it again.
        """
        self._app = app
        self._start = start
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start the run if necessary, and forward the request."""
        if not self._is_started and scope["type"] == "http" and scope["path"].startswith("/runs"):
            await self._start()
            self._is_started = True
        await self._app(scope, receive, send)


class ReadOnly:
    """Middleware that rejects all requests which could change runs. Cases are not part of a run."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward or refuse a request."""
        from rxloop.server.core.errors import Refused, write_problem

        adds_case = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith("/case")
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD") and not adds_case:
            refused = Refused(403, "read_only", "rxloop view only reads runs; use rxloop serve to change them")
            await write_problem(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)
