"""API keys of a server, read from a file or the environment but never from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from rxloop.errors import ConfigurationError

KEYS_VARIABLE = "RXLOOP_KEYS"
METRICS_CLIENT = "metrics"
"""Name of the client whose key gives access to metrics, and to nothing else."""
_KEY_PATTERN = re.compile(r"[!-~]+")
_MIN_KEY_LENGTH = 16
"""Minimum key length. Shorter keys could be guessed."""


def read_keys(file: Path | None, variable: str | None) -> dict[str, str]:
    """Read client keys from a file with lines such as `ann=KEY`, and from a variable with comma-separated pairs.

    Clients can have multiple keys to support key rotation.

    Returns:
        Client names by key.

    Raises:
        ConfigurationError: An entry is invalid. The message contains its position but not the key.
    """
    clients: dict[str, str] = {}
    if variable is not None:
        _add_keys(clients, KEYS_VARIABLE, variable.split(","))
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
            raise ConfigurationError(f"cannot read --keys {str(file)!r}: {reason}") from error
        _add_keys(clients, str(file), lines)
        if not clients:
            raise ConfigurationError(f"--keys {str(file)!r} must contain lines such as ann=KEY")
    return clients


def _add_keys(clients: dict[str, str], source: str, pairs: Iterable[str]) -> None:
    for number, pair in enumerate(pairs, 1):
        if not pair.strip() or pair.lstrip().startswith("#"):
            continue
        name, separator, key = (part.strip() for part in pair.partition("="))
        location = f"{source}, entry {number}"
        if not separator or not name or not name.isprintable():
            raise ConfigurationError(f"{location} must have the form NAME=KEY")
        if not _KEY_PATTERN.fullmatch(key) or len(key) < _MIN_KEY_LENGTH:
            raise ConfigurationError(
                f"{location}: the key of {name!r} must have at least {_MIN_KEY_LENGTH} ASCII characters and no spaces; "
                "create one with `openssl rand -hex 24`"
            )
        if clients.setdefault(key, name) != name:
            raise ConfigurationError(f"{location}: {name!r} and {clients[key]!r} must have different keys")


def check_address(host: str, keys: bool, without_keys: bool) -> None:
    """Reject public addresses without keys.

    Raises:
        ConfigurationError: The address is public, and neither keys nor `without_keys` are set.
    """
    if not (keys or without_keys or is_local(host)):
        raise ConfigurationError(
            f"--host {host} is public and requires keys; set {KEYS_VARIABLE}=ann=KEY or --keys FILE, or add "
            "--without-keys if another component controls access"
        )


def check_metrics_key(keys: Mapping[str, str]) -> None:
    """Reject metrics without a key if there are other keys.

    Raises:
        ConfigurationError: No key has the name of the client.
    """
    if keys and METRICS_CLIENT not in keys.values():
        raise ConfigurationError(
            f"metrics include all clients and require a key of their own; add {METRICS_CLIENT}=KEY to the keys"
        )


def is_local(host: str) -> bool:
    """Return True if the address is only reachable from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
