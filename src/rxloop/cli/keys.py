"""What the environment has of the keys of the vendors; the keys themselves are never shown."""

from __future__ import annotations

import os
from typing import Literal

from rxloop.providers import Preset

KeyState = Literal["set", "by account", "optional", "not needed", "not set"]


def key_variable(preset: Preset) -> str | None:
    """Name the environment variable of the key: of two, the one that is set."""
    names = [name for name in (preset.key_env, preset.other_key_env) if name]
    return next((name for name in names if os.environ.get(name, "").strip()), preset.key_env)


def key_state(preset: Preset) -> KeyState:
    """Say whether the preset can be asked with what the environment has: a key, an account, or nothing at all."""
    if preset.key() is not None:
        return "set"
    if preset.key_source is not None:
        return "by account"
    if preset.key_optional:
        return "optional"
    return "not set" if preset.key_env or preset.key_hint else "not needed"


def how_to_get_in(preset: Preset) -> str:
    """Say what to do where the state is "not set"."""
    setting = f"export {preset.key_env}=..." if preset.key_env else ""
    return ", or ".join(part for part in (setting, preset.key_hint) if part)
