"""Environment variables of HTTP clients: proxies and TLS files."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from urllib.request import getproxies

from rxloop.errors import ConfigurationError, RxloopError

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")

_LARGEST = 200
"""Characters of a value that are shown."""


@contextmanager
def name_variables() -> Generator[None]:
    """Explain failures while an HTTP client, or its TLS context, is created.

    Libraries raise "Invalid port" or "[Errno 2]" and do not say which environment variable they read.

    Raises:
        ConfigurationError: The value of an environment variable cannot be used. The message names both, and what to do.
    """
    try:
        yield
    except RxloopError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        reason = _find_reason()
        if reason is None:
            raise
        # Not chained: the error of the library may contain the password of a proxy.
        raise ConfigurationError(f"the HTTP client cannot be created: {reason}") from None


def has_proxy() -> bool:
    """Return whether the environment names a proxy."""
    return bool(getproxies().keys() - {"no"})


def tls_variables() -> str:
    """Return the variables that say which certificates are trusted, with their values; an empty string without any."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    return ", ".join(f"{name}={_shown(value)}" for name in names if (value := os.environ.get(name)))


def _find_reason() -> str | None:
    return _find_tls_reason() or _find_proxy_reason() or _find_exception_reason()


def _find_tls_reason() -> str | None:
    """Return why the files of the TLS context cannot be used, or None."""
    # Imported after a failure: most programs do not need it.
    import ssl

    for name, expected in (
        ("SSL_CERT_FILE", "a readable file with certificates in PEM format"),
        ("SSL_CERT_DIR", "a readable folder with certificates"),
        ("SSLKEYLOGFILE", "a file that can be written"),
    ):
        value = os.environ.get(name)
        if not value:
            continue
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if name == "SSL_CERT_FILE":
                context.load_verify_locations(cafile=value)
            elif name == "SSL_CERT_DIR":
                context.load_verify_locations(capath=value)
            else:
                context.keylog_filename = value
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return f"{name} must be {expected}, got {_shown(value)} ({said}). Correct the variable, or unset it."
    return None


def _find_proxy_reason() -> str | None:
    """Return why the address of a proxy cannot be used, or None."""
    import httpx

    for variable in _PROXIES:
        name, value = _variable(variable)
        if not value:
            continue
        url = value if "://" in value else f"http://{value}"
        try:
            httpx.AsyncHTTPTransport(proxy=httpx.Proxy(url), verify=False)
        except ImportError:
            return (
                f"{name} is {_without_password(value)}, and SOCKS proxies need the package socksio: "
                "pip install 'httpx[socks]', or unset the variable."
            )
        except Exception:
            return (
                f"{name} must be the address of a proxy with the scheme http, https, socks5 or socks5h, got "
                f"{_without_password(value)}. Correct the variable, or unset it; special characters of a password must "
                "be percent-encoded."
            )
    return None


def _find_exception_reason() -> str | None:
    """Return which host of `NO_PROXY` cannot be used, or None."""
    import httpx

    name, value = _variable("no_proxy")
    for entry in (value or "").split(","):
        host = entry.strip()
        try:
            if host and host != "*":
                httpx.AsyncClient(mounts={_pattern(host): None}, trust_env=False, verify=False)
        except Exception:
            return (
                f"{name} must be host names and IP addresses with commas between, got {_shown(value or '')}, whose "
                f"entry {_shown(host)} is neither. Write IPv6 addresses without brackets and without ranges, or remove "
                "the entry."
            )
    return None


def _pattern(host: str) -> str:
    """Return the address pattern that httpx makes of an entry of `NO_PROXY`."""
    from ipaddress import ip_address

    if "://" in host:
        return host
    try:
        address = ip_address(host.partition("/")[0])
    except ValueError:
        return f"all://{host}" if host.lower() == "localhost" else f"all://*{host}"
    return f"all://{host}" if address.version == 4 else f"all://[{host}]"


def _variable(name: str) -> tuple[str, str | None]:
    """Return the name and the value that count: the lower-case name does, where both are set."""
    upper = name.upper()
    return (name, os.environ[name]) if name in os.environ else (upper, os.environ.get(upper))


def _without_password(value: str) -> str:
    return _shown(re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1***@", value, flags=re.IGNORECASE | re.DOTALL))


def _shown(value: str) -> str:
    return repr(value if len(value) <= _LARGEST else value[:_LARGEST] + "...")
