"""`rxloop models`: the vendors, gateways and servers that a model string may name, and what is known of models."""

from __future__ import annotations

import os
from typing import Annotated

import orjson
import typer

from rxloop.cli.keys import key_state, key_variable
from rxloop.cli.known import facts, in_full, known_at, known_models
from rxloop.cli.table import table
from rxloop.cli.terminal import reporting, say, write
from rxloop.errors import ConfigurationError
from rxloop.providers import CATALOG, PRESETS, Preset, find_model
from rxloop.providers._secrets import shown_address

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
            say(f"RXLOOP_MODEL is {shown_address(chosen)}")


def _one(model: str, json: bool) -> None:
    known, shown = find_model(model), shown_address(model)
    if known is None:
        vendors = ", ".join(PRESETS)
        raise ConfigurationError(f"nothing is known of {shown!r}; the vendors are {vendors}")
    if json:
        write(orjson.dumps({"model": model, **facts(known)}).decode() + "\n")
    else:
        write(f"{model}\n{in_full(known)}")


def example(preset: Preset) -> str:
    """Write a model string of the preset."""
    return f"{preset.name}:{preset.default_model or 'MODEL'}"


def _address(preset: Preset) -> tuple[str, bool]:
    """Return the address, or why there is none; and whether there is one."""
    try:
        return shown_address(preset.url()), True
    except ConfigurationError as error:
        if preset.url_env is None:
            # What is to be done stands at its end.
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
