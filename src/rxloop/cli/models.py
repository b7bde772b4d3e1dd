"""`rxloop models`: the vendors, gateways and local servers that a model string may name."""

from __future__ import annotations

import os
from typing import Annotated

import orjson
import typer

from rxloop.cli.table import table
from rxloop.cli.terminal import reporting, say, write
from rxloop.errors import ConfigurationError
from rxloop.providers import PRESETS, Preset
from rxloop.providers._secrets import shown_address

_COLOURS = {"set": "green", "not set": "yellow"}


def models(
    json: Annotated[bool, typer.Option("--json", help="Write each as JSON, one a line.")] = False,
) -> None:
    """List the models that can be named, and which keys are set.

    The keys themselves are never shown.
    """
    with reporting():
        if json:
            for preset in PRESETS.values():
                write(orjson.dumps(_fields(preset)).decode() + "\n")
            return
        cells = [
            (example(preset), preset.key_env or "", key_state(preset), _address(preset)[0])
            for preset in PRESETS.values()
        ]
        write(table(("MODEL", "KEY", "", "ADDRESS"), cells, _style))
        say("any other endpoint is named by its address: --model http://localhost:8000/v1#model, with RXLOOP_API_KEY")
        if chosen := os.environ.get("RXLOOP_MODEL"):
            say(f"RXLOOP_MODEL is {shown_address(chosen)}")


def example(preset: Preset) -> str:
    """Write a model string of the preset."""
    return f"{preset.name}:{preset.default_model or 'MODEL'}"


def key_state(preset: Preset) -> str:
    """Say whether the key of the preset is set."""
    if preset.key_env is None:
        return "not needed"
    return "set" if preset.key() else "optional" if preset.key_optional else "not set"


def _address(preset: Preset) -> tuple[str, bool]:
    """Return the address, or why there is none; and whether there is one."""
    try:
        return shown_address(preset.url()), True
    except ConfigurationError:
        given = os.environ.get(preset.url_env or "", "")
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
        "keyEnv": preset.key_env,
        "keyOptional": preset.key_optional or preset.key_env is None,
        "keySet": preset.key() is not None,
    }
