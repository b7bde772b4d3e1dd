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
from rxloop.cli.database import check_writable, file_of
from rxloop.cli.model_access import Finding, Findings, Grade, endpoint, how_to_get_in, key_state, key_variable, reached
from rxloop.cli.render import many
from rxloop.cli.terminal import FAILED, colours, reporting, say, width, write
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.providers import PRESETS
from rxloop.storage import SqliteEventLog
from rxloop.storage.opening import is_postgres, open_log
from rxloop.support.redaction import display_url

_FOR_BUILDERS = ("dev", "docs")
"""Extras for rxloop developers."""
_BRINGS = {
    "cli": "this command",
    "fast": "another transport (RXLOOP_TRANSPORT=aiohttp)",
    "mcp": "servers for MCP clients",
    "postgres": "runs in Postgres, on many machines",
    "vertex": "models on Google's Vertex, by the account of this machine",
    "yaml": "strategies in YAML, skills",
}


def installed() -> Findings:
    """Check the installed packages, including extras."""
    try:
        distribution = metadata.distribution("rxloop")
    except metadata.PackageNotFoundError:
        yield Finding(
            Grade.note, "rxloop runs from its source and is not installed: its packages are not known", "pip install ."
        )
        return
    requirements = [Requirement(text) for text in distribution.requires or ()]
    needed = [each for each in requirements if _applies(each, "")]
    yield from _needed(needed)
    for extra in sorted(distribution.metadata.get_all("Provides-Extra") or ()):
        if extra not in _FOR_BUILDERS:
            yield _extra(extra, [each for each in requirements if each not in needed and _applies(each, extra)])


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _needed(packages: Sequence[Requirement]) -> Findings:
    lacking = [problem for each in packages if (problem := _lacks(each))]
    if lacking:
        yield Finding(Grade.bad, "; ".join(lacking), 'pip install --upgrade "rxloop"')
    yield Finding(Grade.good, _list_versions(packages))


def _extra(extra: str, packages: Sequence[Requirement]) -> Finding:
    lacking = [problem for each in packages if (problem := _lacks(each))]
    what = f"[{extra}] {_BRINGS.get(extra, '')}".rstrip()
    if lacking:
        # Extras are optional, so partially installed or outdated packages are not errors.
        return Finding(Grade.note, f"{what}: {'; '.join(lacking)}", f'pip install "rxloop[{extra}]"')
    return Finding(Grade.good, f"{what}: {_list_versions(packages)}")


def _list_versions(packages: Sequence[Requirement]) -> str:
    return ", ".join(f"{each.name} {version}" for each in packages if (version := _version(each.name)))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lacks(requirement: Requirement) -> str | None:
    """Describe an unmet requirement. Returns None if it is met."""
    name, version = requirement.name, _version(requirement.name)
    if version is None:
        return f"{name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{name} is {version} and should be {requirement.specifier}"


_MARKS = {Grade.good: ("✓", "green"), Grade.note: ("·", "dim"), Grade.bad: ("✗", "bold red")}
_ENVIRONMENT = (
    *("RXLOOP_TRANSPORT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"),
    *("OPENAI_API_VERSION", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("AWS_REGION", "AWS_DEFAULT_REGION"),
)
_FILES = {
    "SSL_CERT_FILE": (Grade.bad, "no model can be called: name a file of certificates, or unset it"),
    "GOOGLE_APPLICATION_CREDENTIALS": (
        Grade.note,
        "no model on Vertex can be called: name a file of credentials, or unset it",
    ),
}
"""Variables with file paths, and the message for missing files."""


def doctor(
    check_network: Annotated[
        str | None,
        typer.Option(
            "--check-network",
            metavar="MODEL",
            help="Call the endpoint of this model too. No model is asked, nothing is paid.",
        ),
    ] = None,
    db: options.Database = None,
) -> None:
    """Check that everything rxloop needs is installed and works.

    A missing extra is only a note, with the line that installs it. Exit codes: 0 everything rxloop needs is there, 1
    something is broken.
    """
    with reporting():
        broken = 0
        for title, findings in _parts(check_network, db):
            write(Text(f"{title}\n", "bold"))
            for finding in findings:
                broken += finding.grade is Grade.bad
                _write(finding)
        if not broken:
            write(Text("\neverything rxloop needs is there\n", "green"))
    if broken:
        say(Text(f"\n{broken} {'thing is' if broken == 1 else 'things are'} broken: see the lines with ✗", "bold red"))
        raise typer.Exit(FAILED)


def _parts(model: str | None, db: str | None) -> Iterator[tuple[str, Findings]]:
    yield "rxloop", _program()
    yield "packages", installed()
    yield "models", _models()
    yield "runs", _database(db)
    yield "terminal", _terminal()
    if model is not None:
        yield "network", asyncio.run(reached(model))


def _write(finding: Finding) -> None:
    mark, style = _MARKS[finding.grade]
    write(Text.assemble("  ", (mark, style), f" {finding.says}\n"))
    if finding.hint:
        write(Text(f"      {finding.hint}\n", "yellow" if finding.grade is Grade.bad else "dim"))


def _program() -> Findings:
    place = Path(__file__).parents[1]
    yield Finding(Grade.good, f"rxloop {__version__} in {place}")
    yield Finding(Grade.good, f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}")


def _models() -> Findings:
    # Presets can share variables.
    keys = dict.fromkeys(str(key_variable(preset)) for preset in PRESETS.values() if preset.key() is not None)
    if keys:
        yield Finding(Grade.good, f"keys are set: {', '.join(keys)}")
    else:
        hint = "export ZAI_API_KEY=..., or one of those that `rxloop models` lists; servers on this machine need none"
        yield Finding(Grade.note, "no key is set", hint)
    yield from _clouds()
    chosen = os.environ.get("RXLOOP_MODEL")
    if chosen:
        yield _chosen(chosen)
    else:
        yield Finding(Grade.note, "RXLOOP_MODEL is not set", "export RXLOOP_MODEL=zai:glm-4.7 saves --model each time")
    for name in _ENVIRONMENT:
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            if name in _FILES and not Path(value).is_file():
                grade, hint = _FILES[name]
                yield Finding(grade, f"{name} is {value}, and there is no such file", hint)
            else:
                yield Finding(Grade.note, f"{name} is {display_url(value)}")


def _clouds() -> Findings:
    """Check cloud provider endpoints configured through the environment."""
    for preset in PRESETS.values():
        if preset.base_url is not None or key_state(preset) not in ("set", "by account"):
            continue
        try:
            address = display_url(preset.url())
        except ConfigurationError as error:
            # The provider is probably unused if there is no key.
            if preset.key() is not None:
                yield Finding(Grade.note, f"{preset.name} has a key and no address", str(error))
            continue
        who = "a key" if preset.key() is not None else "the account of this machine"
        yield Finding(Grade.good, f"{preset.name} is asked with {who}, at {address}")


def _chosen(model: str) -> Finding:
    """Check the model selected by the environment."""
    shown = display_url(model)
    try:
        preset, _ = endpoint(model)
    except ConfigurationError as error:
        return Finding(Grade.bad, f"RXLOOP_MODEL is {shown}", str(error))
    if key_state(preset) == "not set":
        return Finding(Grade.bad, f"RXLOOP_MODEL is {shown}", f"it needs a key: {how_to_get_in(preset)}")
    return Finding(Grade.good, f"RXLOOP_MODEL is {shown}")


def _database(given: str | None) -> Findings:
    if is_postgres(given):
        yield asyncio.run(_server(str(given)))
        return
    try:
        path = file_of(given)
    except RxloopError as error:
        yield Finding(Grade.bad, "the database cannot be used", str(error))
        return
    if not path.exists():
        yield _new_database(path)
        return
    try:
        number = asyncio.run(_runs(path))
    except RxloopError as error:
        yield Finding(Grade.bad, f"{path} cannot be used", str(error))
        return
    size = path.stat().st_size / 1_000_000
    yield Finding(Grade.good, f"{path}: {many(number, 'run')}, {size:.1f} MB")


async def _server(address: str) -> Finding:
    """Check the connection to a Postgres server."""
    log, shown = open_log(address, patience=2), display_url(address)
    try:
        await log.list_runs(limit=1)
        return Finding(Grade.good, f"{shown} can be used")
    except RxloopError as error:
        return Finding(Grade.bad, f"{shown} cannot be used", str(error))
    finally:
        await log.aclose()


async def _runs(path: Path) -> int:
    log = SqliteEventLog(path)
    try:
        await check_writable(log, path)
        return len(await log.list_runs())
    finally:
        await log.aclose()


def _new_database(path: Path) -> Finding:
    """Check if a missing database file could be created, without creating it."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            Grade.bad, f"{path} cannot be made: {folder} cannot be written", "name another with --db or RXLOOP_DB"
        )
    return Finding(Grade.good, f"{path} is not there yet; the first run makes it")


def _terminal() -> Findings:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    kinds = (f"{name} is a {'terminal' if each.isatty() else 'pipe or file'}" for name, each in streams.items())
    yield Finding(Grade.good, ", ".join(kinds))
    if sys.stdout.isatty():
        dumb = "" if os.environ.get("TERM") not in (None, "dumb", "unknown") else "; TERM names none that can move back"
        yield Finding(Grade.good, f"{width()} columns, {colours()}{dumb}")
    encoding = (sys.stdout.encoding or "").lower()
    if encoding.replace("-", "") == "utf8":
        yield Finding(Grade.good, "texts are written as UTF-8")
    else:
        hint = "signs that it does not know become others or '?': export LANG=C.UTF-8, or PYTHONUTF8=1"
        yield Finding(Grade.note, f"texts are written as {encoding}", hint)
