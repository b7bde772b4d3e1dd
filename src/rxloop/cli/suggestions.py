"""Values that shells suggest for arguments and options: run ids and model names."""

from __future__ import annotations

import asyncio
import re

import typer

_MAX_RUNS = 30
_MAX_HELP_LENGTH = 50
_UNSAFE = re.compile(r"[^\w .,?!+-]+")
"""Characters of help texts that shells could expand, because completion scripts evaluate the suggestions."""


def suggest_runs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of recent runs with their questions.

    Postgres databases are not opened, because a connection would block the shell.
    """
    # Shells discard errors, and a completion without results is the only useful reaction.
    from rxloop.errors import RxloopError
    from rxloop.storage.log_urls import is_postgres

    database = ctx.params.get("db")
    if is_postgres(database):
        return []
    try:
        found = asyncio.run(_read_recent_runs(database))
    except (RxloopError, OSError):
        return []
    return [("last", "most recent run"), *found] if "last".startswith(incomplete) else found


async def _read_recent_runs(database: str | None) -> list[tuple[str, str]]:
    from rxloop.cli.database import open_database, read_first_event, shorten_ids

    async with open_database(database) as log:
        records = await log.list_runs()
        short = shorten_ids([record.task_id for record in records])
        rows: list[tuple[str, str]] = []
        for record in list(records)[: -_MAX_RUNS - 1 : -1]:
            first = await read_first_event(log, record.task_id)
            question = first.messages[-1].text if first is not None and first.messages else ""
            text = " ".join(_UNSAFE.sub(" ", question).split())[:_MAX_HELP_LENGTH]
            rows.append((short[record.task_id], f"{record.state} {text}"))
    return rows


def suggest_models(incomplete: str) -> list[str]:
    """Return model strings from the catalog, default models and vendor names."""
    from rxloop.providers.catalog import CATALOG
    from rxloop.providers.vendors.presets import PRESETS

    defaults = [f"{preset.name}:{preset.default_model}" for preset in PRESETS.values() if preset.default_model]
    return [name for name in dict.fromkeys([*CATALOG, *defaults, *PRESETS]) if name.startswith(incomplete)]


def suggest_strategies(incomplete: str) -> list[str]:
    """Return the names of reasoning strategies."""
    from rxloop.strategies.catalog import STRATEGIES

    return [name for name in STRATEGIES if name.startswith(incomplete)]


def suggest_events(incomplete: str) -> list[str]:
    """Return the kinds of events."""
    from rxloop.protocol.envelope import EVENT_TYPES

    return [kind for kind in EVENT_TYPES if kind.startswith(incomplete)]


def suggest_keys(incomplete: str) -> list[str]:
    """Return the names of vendors that use API keys, and the variables of the keys."""
    from rxloop.providers.vendors.presets import PRESETS

    vendors = {name: preset.key_env for name, preset in PRESETS.items() if preset.key_env}
    return [name for name in dict.fromkeys([*vendors, *vendors.values()]) if name.startswith(incomplete)]
