"""Commands `models` and `strategies`: available models and reasoning strategies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import Annotated

import orjson
import typer
from pydantic import TypeAdapter
from rich.text import Text

from rxloop.cli.model_access import key_state, key_variable
from rxloop.cli.terminal import reporting, say, table, write
from rxloop.errors import ConfigurationError
from rxloop.providers import CATALOG, PRESETS, KnownModel, Preset, Price, find_model
from rxloop.providers.vendors.model_names import find_host, find_makers
from rxloop.strategies.catalog import STRATEGIES, get_stages
from rxloop.support.redaction import display_url
from rxloop.thinking.stages import StrategyDefinition

_HEAD = ("MODEL", "WINDOW", "OUTPUT", "$ IN", "CACHED", "OUT", "CAN")


def known_at(preset: str) -> dict[str, KnownModel]:
    """Return known models for a preset, by catalog name."""
    hosts = {preset, *find_makers(preset)}
    return {name: known for name, known in CATALOG.items() if find_host(name) in hosts}


def known_models(models: Mapping[str, KnownModel]) -> Text:
    """Format models as a table, with prices in US dollars per million tokens."""
    rows = [
        (
            name,
            _short(known.window),
            _short(known.output),
            *(_prices(known.price)),
            ", ".join(known.abilities),
        )
        for name, known in models.items()
    ]
    return table(_HEAD, rows, lambda place, _: "" if place == 0 else "dim")


def in_full(known: KnownModel) -> str:
    """Format a model's details."""
    lines = [f"window {known.window or 0:,} tokens" if known.window else "window not known"]
    lines.append(f"answers up to {known.output:,} tokens" if known.output else "longest answer not known")
    lines.append(f"can: {', '.join(known.abilities) or 'text alone'}")
    if known.price is None:
        lines.append("price not known")
    else:
        lines.append(f"for a million tokens: {_sum(known.price)}")
        if known.price.above is not None:
            tokens, price = known.price.above
            lines.append(f"of a request above {tokens:,} tokens: {_sum(price)}")
    return "".join(f"  {line}\n" for line in lines)


def facts(known: KnownModel) -> dict[str, object]:
    """Return model details as JSON-compatible data."""
    can = list(known.abilities)
    price = None if known.price is None else _fields_of_model(known.price)
    return {"window": known.window, "output": known.output, "can": can, "price": price}


def _fields_of_model(price: Price) -> dict[str, object]:
    above = None
    if price.above is not None:
        above = {"tokens": price.above[0], "price": _fields_of_model(price.above[1])}
    return {
        "input": price.input,
        "output": price.output,
        "cached": price.cached,
        "cacheWrite": price.cache_write,
        "cacheWriteLong": price.cache_write_long,
        "above": above,
    }


def _prices(price: Price | None) -> tuple[str, str, str]:
    if price is None:
        return "", "", ""
    more = "" if price.above is None else "+"
    return f"{price.input:g}{more}", "" if price.cached is None else f"{price.cached:g}", f"{price.output:g}"


def _sum(price: Price) -> str:
    parts = (
        (price.input, "input"),
        (price.cached, "from the cache"),
        (price.cache_write, "written to the cache"),
        (price.cache_write_long, "written to be kept for long"),
        (price.output, "output"),
    )
    return ", ".join(f"${dollars:g} {what}" for dollars, what in parts if dollars is not None)


def _short(tokens: int | None) -> str:
    if tokens is None:
        return ""
    return f"{tokens / 1_000_000:.3g}M" if tokens >= 1_000_000 else f"{tokens // 1000}k"


_COLOURS = {"set": "green", "by account": "green", "not set": "yellow"}


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[VENDOR|MODEL]", help="Only those of a vendor, or all about one model.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write each as JSON, one a line.")] = False,
) -> None:
    """List the models that can be named, what is known of them, and which keys are set.

    Prices are dollars for a million tokens, as the vendors had them on the day that the documents name; + means that
    long requests cost more. The keys themselves are never shown.
    """
    with reporting():
        if name is not None and name not in PRESETS:
            _one(name, json)
            return
        presets = list(PRESETS.values()) if name is None else [PRESETS[name]]
        if json:
            for preset in presets:
                write(orjson.dumps(_fields(preset)).decode() + "\n")
            return
        known = CATALOG if name is None else known_at(name)
        if known:
            write(known_models(known).append("\n"))
        cells = [
            (example(preset), key_variable(preset) or "", key_state(preset), _address(preset)[0]) for preset in presets
        ]
        write(table(("MODEL", "KEY", "", "ADDRESS"), cells, _style))
        if name is not None:
            return
        say("rxloop models VENDOR lists those of one vendor, and rxloop models MODEL says all about a model")
        say("any other endpoint is named by its address: --model http://localhost:8000/v1#model, with RXLOOP_API_KEY")
        if chosen := os.environ.get("RXLOOP_MODEL"):
            say(f"RXLOOP_MODEL is {display_url(chosen)}")


def _one(model: str, json: bool) -> None:
    known, shown = find_model(model), display_url(model)
    if known is None:
        vendors = ", ".join(PRESETS)
        raise ConfigurationError(f"nothing is known of {shown!r}; the vendors are {vendors}")
    if json:
        write(orjson.dumps({"model": model, **facts(known)}).decode() + "\n")
    else:
        write(f"{model}\n{in_full(known)}")


def example(preset: Preset) -> str:
    """Return an example model string for a preset."""
    return f"{preset.name}:{preset.default_model or 'MODEL'}"


def _address(preset: Preset) -> tuple[str, bool]:
    """Return the endpoint URL and True, or an error message and False."""
    try:
        return display_url(preset.url()), True
    except ConfigurationError as error:
        if preset.url_env is None:
            # The message ends with the remedy.
            return str(error).rpartition(": ")[2], False
        given = os.environ.get(preset.url_env, "")
        return (f"{preset.url_env} is not an address" if given else f"set {preset.url_env}"), False


def _style(place: int, cell: str) -> str:
    return _COLOURS.get(cell, "dim") if place == 2 else "" if place == 0 else "dim"


def _fields(preset: Preset) -> dict[str, object]:
    address, known = _address(preset)
    return {
        "name": preset.name,
        "model": example(preset),
        "baseUrl": address if known else None,
        "urlEnv": preset.url_env,
        "keyEnv": key_variable(preset),
        "keyOptional": preset.key_optional or key_state(preset) in ("by account", "not needed"),
        "keySet": preset.key() is not None,
        "known": {name: facts(known) for name, known in known_at(preset.name).items()},
    }


_WIDTH = 100


class StrategyFormat(StrEnum):
    """Output format for strategies."""

    text = "text"
    mermaid = "mermaid"
    json = "json"


def _json(found: StrategyDefinition) -> str:
    """Format a strategy using JSON, as expected by `StrategyDefinition.from_json`."""
    return TypeAdapter(StrategyDefinition).dump_json(found, indent=2, exclude_defaults=True).decode()


_WRITERS: dict[StrategyFormat, Callable[[StrategyDefinition], str]] = {
    StrategyFormat.text: StrategyDefinition.describe,
    StrategyFormat.mermaid: StrategyDefinition.to_mermaid,
    StrategyFormat.json: _json,
}


def strategies(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A strategy, or a file of one (.json, .yaml).")
    ] = None,
    format: Annotated[StrategyFormat, typer.Option("--format", "-f", help="How to write it.")] = StrategyFormat.text,
) -> None:
    """List the reasoning strategies, or show the stages of one."""
    with reporting():
        found = [_find(name)] if name is not None else list(STRATEGIES.values())
        if name is None and format is StrategyFormat.text:
            text = "\n\n".join(map(_summary, found)) + "\n"
        else:
            text = "\n".join(_WRITERS[format](definition).rstrip("\n") + "\n" for definition in found)
        write(text)


def _find(name: str) -> StrategyDefinition:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return StrategyDefinition.from_yaml(path)
    return StrategyDefinition.from_json(path) if path.suffix == ".json" else get_stages(name)


def _summary(found: StrategyDefinition) -> str:
    aliases = f" (also {', '.join(found.aliases)})" if found.aliases else ""
    stages = " > ".join(stage.name for stage in found.stages)
    lines = [fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ") for text in (found.when, stages)]
    return "\n".join([f"{found.name}{aliases}", *lines])
