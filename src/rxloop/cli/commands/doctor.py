"""Command `doctor`: installation and environment checks."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from rich.text import Text

from rxloop._version import __version__
from rxloop.cli import options
from rxloop.cli.database import check_writable, resolve_path
from rxloop.cli.installation import make_install_command
from rxloop.cli.model_access import (
    OFFLINE,
    Finding,
    Findings,
    Grade,
    check_endpoint,
    describe_key_setup,
    get_key_state,
    get_key_variable,
    resolve_endpoint,
)
from rxloop.cli.render import format_count
from rxloop.cli.stored_keys import get_key_path, read_keys
from rxloop.cli.terminal import FAILED, describe_colours, get_width, notify, report_errors, write
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.providers import PRESETS
from rxloop.storage import SqliteEventLog
from rxloop.storage.log_urls import is_postgres, open_log
from rxloop.support.redaction import display_url

_DEVELOPMENT_EXTRAS = ("dev", "docs", "test")
"""Extras for rxloop developers."""
_EXTRAS = {
    "cli": "this command",
    "fast": "alternative transport (RXLOOP_TRANSPORT=aiohttp)",
    "mcp": "servers for MCP clients",
    "metrics": "metrics for Prometheus",
    "otel": "OpenTelemetry spans and metrics",
    "postgres": "runs in Postgres, on multiple machines",
    "vertex": "models on Google Vertex, with the account of this machine",
    "yaml": "strategies in YAML, skills",
}


def check_packages() -> Findings:
    """Check the installed packages, including extras."""
    try:
        distribution = metadata.distribution("rxloop")
    except metadata.PackageNotFoundError:
        yield Finding(Grade.note, "rxloop is not installed, so its dependencies cannot be checked", "pip install .")
        return
    requirements = [Requirement(text) for text in distribution.requires or ()]
    required = [each for each in requirements if _applies(each, "")]
    yield from _check_required(required)
    for extra in sorted(distribution.metadata.get_all("Provides-Extra") or ()):
        if extra not in _DEVELOPMENT_EXTRAS:
            yield _check_extra(extra, [each for each in requirements if each not in required and _applies(each, extra)])


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _check_required(packages: Sequence[Requirement]) -> Findings:
    problems = [problem for each in packages if (problem := _find_problem(each))]
    if problems:
        yield Finding(Grade.bad, "; ".join(problems), 'pip install --upgrade "rxloop"')
    yield Finding(Grade.good, _list_versions(packages))


def _check_extra(extra: str, packages: Sequence[Requirement]) -> Finding:
    problems = [problem for each in packages if (problem := _find_problem(each))]
    label = f"[{extra}] {_EXTRAS.get(extra, '')}".rstrip()
    if problems:
        # Extras are optional, so partially installed or outdated packages are not errors.
        return Finding(Grade.note, f"{label}: {'; '.join(problems)}", make_install_command(extra))
    return Finding(Grade.good, f"{label}: {_list_versions(packages)}")


def _list_versions(packages: Sequence[Requirement]) -> str:
    return ", ".join(f"{each.name} {version}" for each in packages if (version := _get_version(each.name)))


def _get_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_problem(requirement: Requirement) -> str | None:
    """Describe an unmet requirement. Returns None if it is met."""
    name, version = requirement.name, _get_version(requirement.name)
    if version is None:
        return f"{name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{name} must be {requirement.specifier}, got {version}"


_MARKS = {Grade.good: ("✓", "green"), Grade.note: ("·", "dim"), Grade.bad: ("✗", "bold red")}
_ENVIRONMENT = (
    *("RXLOOP_TRANSPORT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"),
    *("OPENAI_API_VERSION", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("AWS_REGION", "AWS_DEFAULT_REGION"),
)
_FILES = {
    "SSL_CERT_FILE": (Grade.bad, "models cannot be called; set a certificate file, or unset the variable"),
    "GOOGLE_APPLICATION_CREDENTIALS": (
        Grade.note,
        "models on Vertex cannot be called; set a credentials file, or unset the variable",
    ),
}
"""Variables with file paths, and the message for missing files."""


def doctor(
    check_network: Annotated[
        str | None,
        typer.Option(
            "--check-network", metavar="MODEL", help="Also check the endpoint of this model, without calling the model."
        ),
    ] = None,
    db: options.Database = None,
) -> None:
    """Check the installation and its environment.

    Missing extras are not errors. The output contains the command that installs them. Exit codes: 0 no errors, 1
    errors found.
    """
    with report_errors():
        errors = 0
        for title, findings in _run_checks(check_network, db):
            write(Text(f"{title}\n", "bold"))
            for finding in findings:
                errors += finding.grade is Grade.bad
                _write_finding(finding)
        if not errors:
            write(Text("\nno errors found\n", "green"))
    if errors:
        notify(Text(f"\n{format_count(errors, 'error')} found; see the lines with ✗", "bold red"))
        raise typer.Exit(FAILED)


def _run_checks(model: str | None, db: str | None) -> Iterator[tuple[str, Findings]]:
    yield "rxloop", _check_program()
    yield "packages", check_packages()
    yield "models", _check_models()
    yield "runs", _check_database(db)
    yield "terminal", _check_terminal()
    if model is not None:
        yield "network", asyncio.run(check_endpoint(model))


def _write_finding(finding: Finding) -> None:
    mark, style = _MARKS[finding.grade]
    write(Text.assemble("  ", (mark, style), f" {finding.message}\n"))
    if finding.hint:
        write(Text(f"      {finding.hint}\n", "yellow" if finding.grade is Grade.bad else "dim"))


def _check_program() -> Findings:
    folder = Path(__file__).parents[2]
    yield Finding(Grade.good, f"rxloop {__version__} in {folder}")
    yield Finding(Grade.good, f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}")


def _check_models() -> Findings:
    try:
        stored = read_keys()
    except ConfigurationError as error:
        # Stored keys affect all further checks of models.
        yield Finding(Grade.bad, "cannot use the stored keys", str(error))
        return
    # Presets can share variables.
    keys = dict.fromkeys(str(get_key_variable(preset)) for preset in PRESETS.values() if preset.key() is not None)
    names = [f"{name} (overridden by the environment)" if os.environ.get(name) else name for name in stored]
    if keys:
        yield Finding(Grade.good, f"keys are set: {', '.join(keys)}")
    if stored:
        yield Finding(Grade.good, f"keys are stored in {get_key_path()}: {', '.join(names)}")
    if not keys and not stored:
        hint = "export ZAI_API_KEY=..., or rxloop keys set zai; see rxloop models; local servers need no key"
        yield Finding(Grade.note, "no key is set", hint)
    yield from _check_clouds()
    chosen = os.environ.get("RXLOOP_MODEL")
    if chosen:
        yield _check_selected(chosen)
    else:
        yield Finding(Grade.note, "RXLOOP_MODEL is not set", "export RXLOOP_MODEL=zai:glm-4.7 to omit --model")
    for name in _ENVIRONMENT:
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            if name in _FILES and not Path(value).is_file():
                grade, hint = _FILES[name]
                yield Finding(grade, f"{name} is {value}, which does not exist", hint)
            else:
                yield Finding(Grade.note, f"{name} is {display_url(value)}")


def _check_clouds() -> Findings:
    """Check cloud provider endpoints configured through the environment."""
    for preset in PRESETS.values():
        if preset.base_url is not None or get_key_state(preset) not in ("set", "stored", "by account"):
            continue
        try:
            address = display_url(preset.url())
        except ConfigurationError as error:
            # The provider is probably unused if there is no key.
            if get_key_state(preset) != "by account":
                yield Finding(Grade.note, f"{preset.name} has a key but no URL", str(error))
            continue
        credential = "a key" if get_key_state(preset) != "by account" else "the account of this machine"
        yield Finding(Grade.good, f"{preset.name} uses {credential}, at {address}")


def _check_selected(model: str) -> Finding:
    """Check the model selected by the environment."""
    display = display_url(model)
    if model == OFFLINE:
        return Finding(Grade.good, f"RXLOOP_MODEL is {display}, which needs no key")
    try:
        preset, _ = resolve_endpoint(model)
    except ConfigurationError as error:
        return Finding(Grade.bad, f"RXLOOP_MODEL is {display}", str(error))
    if get_key_state(preset) == "not set":
        return Finding(Grade.bad, f"RXLOOP_MODEL is {display}", f"requires a key: {describe_key_setup(preset)}")
    return Finding(Grade.good, f"RXLOOP_MODEL is {display}")


def _check_database(database: str | None) -> Findings:
    if is_postgres(database):
        yield asyncio.run(_check_server(str(database)))
        return
    try:
        path = resolve_path(database)
    except RxloopError as error:
        yield Finding(Grade.bad, "cannot use the database", str(error))
        return
    if not path.exists():
        yield _check_new_database(path)
        return
    try:
        number = asyncio.run(_count_runs(path))
    except RxloopError as error:
        yield Finding(Grade.bad, f"cannot use {path}", str(error))
        return
    size = path.stat().st_size / 1_000_000
    yield Finding(Grade.good, f"{path}: {format_count(number, 'run')}, {size:.1f} MB")


async def _check_server(address: str) -> Finding:
    """Check the connection to a Postgres server."""
    log, display = open_log(address, timeout=2), display_url(address)
    try:
        await log.list_runs(limit=1)
        return Finding(Grade.good, f"{display} is available")
    except RxloopError as error:
        return Finding(Grade.bad, f"cannot use {display}", str(error))
    finally:
        await log.aclose()


async def _count_runs(path: Path) -> int:
    log = SqliteEventLog(path)
    try:
        await check_writable(log, path)
        return len(await log.list_runs())
    finally:
        await log.aclose()


def _check_new_database(path: Path) -> Finding:
    """Check if a missing database file could be created, without creating it."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            Grade.bad, f"cannot create {path}: {folder} is not writable", "set a different path with --db or RXLOOP_DB"
        )
    return Finding(Grade.good, f"{path} does not exist; the first run creates it")


def _check_terminal() -> Findings:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    kinds = (f"{name} is a {'terminal' if each.isatty() else 'pipe or file'}" for name, each in streams.items())
    yield Finding(Grade.good, ", ".join(kinds))
    if sys.stdout.isatty():
        cursor_note = (
            "" if os.environ.get("TERM") not in (None, "dumb", "unknown") else "; TERM does not support cursor movement"
        )
        yield Finding(Grade.good, f"{get_width()} columns, {describe_colours()}{cursor_note}")
    encoding = (sys.stdout.encoding or "").lower()
    if encoding.replace("-", "") == "utf8":
        yield Finding(Grade.good, "output encoding is UTF-8")
    else:
        hint = "unsupported characters are replaced; export LANG=C.UTF-8, or PYTHONUTF8=1"
        yield Finding(Grade.note, f"output encoding is {encoding}", hint)
