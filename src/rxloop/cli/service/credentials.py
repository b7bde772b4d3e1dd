"""The keys of a server, from the environment or a file, and never from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from rxloop.errors import ConfigurationError

VARIABLE = "RXLOOP_KEYS"
_KEY = re.compile(r"[!-~]+")
_SHORTEST = 16
"""Signs of a key: a shorter one can be guessed."""


def read_keys(file: Path | None, variable: str | None) -> dict[str, str]:
    """Read who may ask: lines such as `ann=KEY` of a file, and such pairs with commas between of the variable.

    Somebody may have several keys, so that they can be changed one after the other.

    Returns:
        The names by the keys.

    Raises:
        ConfigurationError: One cannot be a key; the message says where it stands, and never what it is.
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
    """See that nobody serves the whole network by mistake.

    Raises:
        ConfigurationError: The address is public, and there are no keys.
    """
    if not (keys or without_keys or is_local(host)):
        raise ConfigurationError(
            f"--host {host} can be reached by others, and there are no keys: set {VARIABLE}=ann=KEY or --keys FILE, "
            "or add --without-keys if something else decides who gets here"
        )


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
