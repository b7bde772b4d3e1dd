"""API keys of a server, read from a file or the environment but never from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from rxloop.errors import ConfigurationError

VARIABLE = "RXLOOP_KEYS"
_KEY = re.compile(r"[!-~]+")
_SHORTEST = 16
"""Minimum key length. Shorter keys could be guessed."""


def read_keys(file: Path | None, variable: str | None) -> dict[str, str]:
    """Read client keys from a file with lines such as `ann=KEY`, and from a variable with comma-separated pairs.

    Clients can have multiple keys to support key rotation.

    Returns:
        Client names by key.

    Raises:
        ConfigurationError: An entry is invalid. The message contains its position but not the key.
    """
    found: dict[str, str] = {}
    if variable is not None:
        _add(found, VARIABLE, variable.split(","))
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            said = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
            raise ConfigurationError(f"--keys {str(file)!r} cannot be read: {said}") from error
        _add(found, str(file), lines)
        if not found:
            raise ConfigurationError(f"--keys {str(file)!r} has no keys: write a line such as ann=KEY for each")
    return found


def _add(found: dict[str, str], source: str, pairs: Iterable[str]) -> None:
    for number, pair in enumerate(pairs, 1):
        if not pair.strip() or pair.lstrip().startswith("#"):
            continue
        name, sign, key = (part.strip() for part in pair.partition("="))
        where = f"{source}, entry {number}"
        if not sign or not name or not name.isprintable():
            raise ConfigurationError(f"{where}: write NAME=KEY")
        if not _KEY.fullmatch(key) or len(key) < _SHORTEST:
            raise ConfigurationError(
                f"{where}: the key of {name!r} must have at least {_SHORTEST} ASCII signs and no spaces, as those of "
                "`openssl rand -hex 24` have"
            )
        if found.setdefault(key, name) != name:
            raise ConfigurationError(f"{where}: {name!r} has the same key as {found[key]!r}")


def check_address(host: str, keys: bool, without_keys: bool) -> None:
    """Reject public addresses that are not protected by keys.

    Raises:
        ConfigurationError: The address is public, and neither keys nor `without_keys` are set.
    """
    if not (keys or without_keys or is_local(host)):
        raise ConfigurationError(
            f"--host {host} can be reached by others, and there are no keys: set {VARIABLE}=ann=KEY or --keys FILE, "
            "or add --without-keys if something else decides who gets here"
        )


def is_local(host: str) -> bool:
    """True if the address is only reachable from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
