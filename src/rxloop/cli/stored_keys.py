"""API keys stored by `rxloop keys`.

Only the command line interface reads this file. It passes a stored key to the model it creates and does not change
the environment, so tools and MCP servers do not inherit the key. `import rxloop` never reads the file.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import orjson
import platformdirs

from rxloop._names import find_nearest
from rxloop.errors import ConfigurationError
from rxloop.providers import PRESETS, Preset
from rxloop.providers.vendors.presets import CUSTOM
from rxloop.support.safe_files import open_path, read_range

_MAX_SIZE = 1 << 20
"""Maximum size of the file in bytes."""
_FORBIDDEN_BITS = stat.S_IRWXG | stat.S_IRWXO


def get_key_path() -> Path:
    """Return the path of the file with stored keys."""
    return platformdirs.user_config_path("rxloop", appauthor=False) / "keys.json"


def read_keys() -> Mapping[str, str]:
    """Return the stored keys by environment variable. A missing file has no keys.

    Raises:
        ConfigurationError: Other users can read the file, or its content is invalid.
    """
    path = get_key_path()
    if not path.parent.is_dir():
        return {}
    try:
        with open_path(path.parent, path.name) as handle:
            mode = os.fstat(handle).st_mode
            data = read_range(handle, 0, _MAX_SIZE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"cannot read the keys in {path}: {error.strerror or error}") from error
    if os.name == "posix" and mode & _FORBIDDEN_BITS:
        raise ConfigurationError(
            f"{path} must be readable only by its owner, got mode {stat.S_IMODE(mode):04o}; run chmod 600 {path}"
        )
    try:
        content: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}; correct or delete the file") from None
    keys = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise ConfigurationError(
            f"{path} must be an object with a string for each variable; correct or delete the file"
        )
    return keys


def store_key(variable: str, key: str) -> None:
    """Add a key to the file or replace the stored key.

    Raises:
        ConfigurationError: The file is invalid or cannot be written.
    """
    _write_keys({**read_keys(), variable: key})


def remove_key(variable: str) -> bool:
    """Remove a key. Return False if it is not stored.

    Raises:
        ConfigurationError: The file is invalid or cannot be written.
    """
    keys = dict(read_keys())
    if keys.pop(variable, None) is None:
        return False
    _write_keys(keys)
    return True


def _write_keys(keys: Mapping[str, str]) -> None:
    """Replace the file atomically. Its owner is the only user with access at any time."""
    path = get_key_path()
    temporary: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `mkstemp` creates files with mode 0600.
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(orjson.dumps(dict(sorted(keys.items())), option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
    except OSError as error:
        raise ConfigurationError(f"cannot write the keys to {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()


def find_variable(name: str) -> str:
    """Find an environment variable using a vendor, model string or variable name.

    Raises:
        ConfigurationError: The vendor is unknown or does not use keys.
    """
    vendor = name.partition(":")[0]
    if vendor in PRESETS:
        variable = PRESETS[vendor].key_env
        if variable is None:
            raise ConfigurationError(f"{vendor} has no API key; rxloop models {vendor} shows its settings")
        return variable
    presets = (*PRESETS.values(), CUSTOM)
    variables = {each for preset in presets for each in (preset.key_env, preset.other_key_env) if each}
    if name in variables:
        return name
    nearest = find_nearest(name, [*PRESETS, *variables])
    hint = "" if nearest is None else f"did you mean {nearest}? "
    raise ConfigurationError(f"unknown vendor or variable {name!r}; {hint}rxloop models lists all vendors")


def find_stored_key(preset: Preset) -> str | None:
    """Return the stored key for a preset. Environment variables have priority, so the result is then None.

    Raises:
        ConfigurationError: The file is invalid.
    """
    names = [name for name in (preset.key_env, preset.other_key_env) if name]
    if not names or preset.key() is not None:
        return None
    keys = read_keys()
    return next((keys[name] for name in names if keys.get(name)), None)
