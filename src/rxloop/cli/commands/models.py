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

from rxloop.cli.model_access import get_key_state, get_key_variable
from rxloop.cli.stored_keys import find_stored_key
from rxloop.cli.suggestions import suggest_models, suggest_strategies
from rxloop.cli.terminal import format_table, notify, report_errors, write
from rxloop.errors import ConfigurationError
from rxloop.providers import CATALOG, PRESETS, KnownModel, Preset, Price, find_model
from rxloop.providers.vendors.model_names import find_host, find_makers
from rxloop.strategies.catalog import STRATEGIES, get_stages
from rxloop.support.redaction import display_url
from rxloop.thinking.stages import StrategyDefinition

_COLUMN_NAMES = ("MODEL", "WINDOW", "OUTPUT", "$ IN", "CACHED", "OUT", "CAN")


def find_models(preset: str) -> dict[str, KnownModel]:
    """Return known models for a preset, by catalog name."""
    hosts = {preset, *find_makers(preset)}
    return {name: known for name, known in CATALOG.items() if find_host(name) in hosts}


def format_models(models: Mapping[str, KnownModel]) -> Text:
    """Format models as a table, with prices in US dollars per million tokens."""
    rows = [
        (
            name,
            _format_tokens(known.window),
            _format_tokens(known.output),
            *(_format_prices(known.price)),
            ", ".join(known.abilities),
        )
        for name, known in models.items()
    ]
    return format_table(_COLUMN_NAMES, rows, lambda index, _: "" if index == 0 else "dim")


def format_details(known: KnownModel) -> str:
    """Format a model's details."""
    lines = [f"window {known.window or 0:,} tokens" if known.window else "unknown window"]
    lines.append(f"maximum output {known.output:,} tokens" if known.output else "unknown maximum output")
    lines.append(f"abilities: {', '.join(known.abilities) or 'text only'}")
    if known.price is None:
        lines.append("unknown price")
    else:
        lines.append(f"per million tokens: {_format_sum(known.price)}")
        if known.price.above is not None:
            tokens, price = known.price.above
            lines.append(f"for requests with more than {tokens:,} tokens: {_format_sum(price)}")
    return "".join(f"  {line}\n" for line in lines)


def to_data(known: KnownModel) -> dict[str, object]:
    """Return model details as JSON-compatible data."""
    abilities = list(known.abilities)
    price = None if known.price is None else _price_to_data(known.price)
    return {"window": known.window, "output": known.output, "can": abilities, "price": price}


def _price_to_data(price: Price) -> dict[str, object]:
    above = None
    if price.above is not None:
        above = {"tokens": price.above[0], "price": _price_to_data(price.above[1])}
    return {
        "input": price.input,
        "output": price.output,
        "cached": price.cached,
        "cacheWrite": price.cache_write,
        "cacheWriteLong": price.cache_write_long,
        "above": above,
    }


def _format_prices(price: Price | None) -> tuple[str, str, str]:
    if price is None:
        return "", "", ""
    suffix = "" if price.above is None else "+"
    return f"{price.input:g}{suffix}", "" if price.cached is None else f"{price.cached:g}", f"{price.output:g}"


def _format_sum(price: Price) -> str:
    parts = (
        (price.input, "input"),
        (price.cached, "cached input"),
        (price.cache_write, "cache write"),
        (price.cache_write_long, "long-term cache write"),
        (price.output, "output"),
    )
    return ", ".join(f"${dollars:g} {label}" for dollars, label in parts if dollars is not None)


def _format_tokens(tokens: int | None) -> str:
    if tokens is None:
        return ""
    return f"{tokens / 1_000_000:.3g}M" if tokens >= 1_000_000 else f"{tokens // 1000}k"


_COLOURS = {"set": "green", "stored": "green", "by account": "green", "not set": "yellow"}


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[VENDOR|MODEL]", help="Name of a vendor or model.", autocompletion=suggest_models),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write vendors or the model as JSON, one per line.")] = False,
) -> None:
    """List known models, their prices, and the state of API keys.

    Prices are US dollars per million tokens, from the date given in the documentation. A + means that long requests
    cost more. Keys are never shown: a key is set by the environment, or stored by `rxloop keys`.
    """
    with report_errors():
        if name is not None and name not in PRESETS:
            _show_model(name, json)
            return
        presets = list(PRESETS.values()) if name is None else [PRESETS[name]]
        if json:
            for preset in presets:
                write(orjson.dumps(_preset_to_data(preset)).decode() + "\n")
            return
        known = CATALOG if name is None else find_models(name)
        if known:
            write(format_models(known).append("\n"))
        cells = [
            (make_example(preset), get_key_variable(preset) or "", get_key_state(preset), _describe_endpoint(preset)[0])
            for preset in presets
        ]
        write(format_table(("MODEL", "KEY", "", "ADDRESS"), cells, _style_cell))
        if name is not None:
            return
        notify("rxloop models VENDOR lists the models of a vendor, and rxloop models MODEL shows details of a model")
        notify("other endpoints are selected by URL: --model http://localhost:8000/v1#model, with RXLOOP_API_KEY")
        if chosen := os.environ.get("RXLOOP_MODEL"):
            notify(f"RXLOOP_MODEL is {display_url(chosen)}")


def _show_model(model: str, json: bool) -> None:
    known, display = find_model(model), display_url(model)
    if known is None:
        vendors = ", ".join(PRESETS)
        raise ConfigurationError(f"unknown model or vendor {display!r}; available vendors: {vendors}")
    if json:
        write(orjson.dumps({"model": model, **to_data(known)}).decode() + "\n")
    else:
        write(f"{model}\n{format_details(known)}")


def make_example(preset: Preset) -> str:
    """Return an example model string for a preset."""
    return f"{preset.name}:{preset.default_model or 'MODEL'}"


def _describe_endpoint(preset: Preset) -> tuple[str, bool]:
    """Return the endpoint URL and True, or an error message and False."""
    try:
        return display_url(preset.url()), True
    except ConfigurationError as error:
        if preset.url_env is None:
            # Remedies follow the last colon.
            return str(error).rpartition(": ")[2], False
        value = os.environ.get(preset.url_env, "")
        return (f"{preset.url_env} is not a URL" if value else f"set {preset.url_env}"), False


def _style_cell(index: int, cell: str) -> str:
    return _COLOURS.get(cell, "dim") if index == 2 else "" if index == 0 else "dim"


def _preset_to_data(preset: Preset) -> dict[str, object]:
    address, known = _describe_endpoint(preset)
    return {
        "name": preset.name,
        "model": make_example(preset),
        "baseUrl": address if known else None,
        "urlEnv": preset.url_env,
        "keyEnv": get_key_variable(preset),
        "keyOptional": preset.key_optional or get_key_state(preset) in ("by account", "not needed"),
        "keySet": preset.key() is not None or find_stored_key(preset) is not None,
        "keySource": _find_key_source(preset),
        "known": {name: to_data(known) for name, known in find_models(preset.name).items()},
    }


def _find_key_source(preset: Preset) -> str | None:
    """Return the key's origin: `environment`, `file`, or None without a key."""
    if preset.key() is not None:
        return "environment"
    return "file" if find_stored_key(preset) is not None else None


_WIDTH = 100


class StrategyFormat(StrEnum):
    """Output format for strategies."""

    text = "text"
    mermaid = "mermaid"
    json = "json"


def _to_json(definition: StrategyDefinition) -> str:
    """Format a strategy using JSON, as expected by `StrategyDefinition.from_json`."""
    return TypeAdapter(StrategyDefinition).dump_json(definition, indent=2, exclude_defaults=True).decode()


_WRITERS: dict[StrategyFormat, Callable[[StrategyDefinition], str]] = {
    StrategyFormat.text: StrategyDefinition.describe,
    StrategyFormat.mermaid: StrategyDefinition.to_mermaid,
    StrategyFormat.json: _to_json,
}


def strategies(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Strategy name, or strategy file (.json, .yaml).", autocompletion=suggest_strategies
        ),
    ] = None,
    format: Annotated[StrategyFormat, typer.Option("--format", "-f", help="Output format.")] = StrategyFormat.text,
) -> None:
    """List reasoning strategies, or describe one of them."""
    with report_errors():
        definitions = [_find_strategy(name)] if name is not None else list(STRATEGIES.values())
        if name is None and format is StrategyFormat.text:
            text = "\n\n".join(map(_format_summary, definitions)) + "\n"
        else:
            text = "\n".join(_WRITERS[format](definition).rstrip("\n") + "\n" for definition in definitions)
        write(text)


def _find_strategy(name: str) -> StrategyDefinition:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return StrategyDefinition.from_yaml(path)
    return StrategyDefinition.from_json(path) if path.suffix == ".json" else get_stages(name)


def _format_summary(definition: StrategyDefinition) -> str:
    aliases = f" (also {', '.join(definition.aliases)})" if definition.aliases else ""
    stages = " > ".join(stage.name for stage in definition.stages)
    lines = [fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ") for text in (definition.when, stages)]
    return "\n".join([f"{definition.name}{aliases}", *lines])
