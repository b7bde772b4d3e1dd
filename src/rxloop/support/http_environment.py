"""Error messages for environment variables of HTTP clients: proxies and TLS files."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from urllib.request import getproxies

from rxloop.errors import ConfigurationError, RxloopError

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")

_MAX_LENGTH = 200
"""Maximum length of a displayed value in characters."""


@contextmanager
def name_variables() -> Generator[None]:
    """Context manager that explains errors of an HTTP client or its TLS context.

    Libraries raise "Invalid port" or "[Errno 2]" without naming the environment variable that they read.

    Raises:
        ConfigurationError: An environment variable has an invalid value. The message names the variable and a remedy.
    """
    try:
        yield
    except RxloopError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        reason = _find_tls_reason() or _find_proxy_reason() or _find_exception_reason()
        if reason is None:
            raise
        # Do not chain the library's error, because it may contain a proxy password.
        raise ConfigurationError(f"cannot create the HTTP client: {reason}") from None


def has_proxy() -> bool:
    """Return True if the environment defines a proxy."""
    return bool(getproxies().keys() - {"no"})


def format_tls_variables() -> str:
    """Return the variables for trusted certificates with their values, or an empty string if none is set."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    return ", ".join(f"{name}={_quote(value)}" for name in names if (value := os.environ.get(name)))


def _find_tls_reason() -> str | None:
    """Return the reason if a TLS file cannot be used, otherwise None."""
    # Imported on first use, because it is only needed after a failure.
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
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return f"{name} must be {expected}, got {_quote(value)} ({reason}). Correct the variable, or unset it."
    return None


def _find_proxy_reason() -> str | None:
    """Return the reason if a proxy URL is invalid, otherwise None."""
    import httpx

    for variable in _PROXIES:
        name, value = _read_variable(variable)
        if not value:
            continue
        url = value if "://" in value else f"http://{value}"
        try:
            httpx.AsyncHTTPTransport(proxy=httpx.Proxy(url), verify=False)
        except ImportError:
            return (
                f"{name} is {_hide_password(value)}, and SOCKS proxies need the package socksio: "
                "pip install 'httpx[socks]', or unset the variable."
            )
        except Exception:
            return (
                f"{name} must be the address of a proxy with the scheme http, https, socks5 or socks5h, got "
                f"{_hide_password(value)}. Correct the variable, or unset it; special characters in passwords must "
                "be percent-encoded."
            )
    return None


def _find_exception_reason() -> str | None:
    """Return the reason if `NO_PROXY` contains an invalid host, otherwise None."""
    import httpx

    name, value = _read_variable("no_proxy")
    for entry in (value or "").split(","):
        host = entry.strip()
        try:
            if host and host != "*":
                httpx.AsyncClient(mounts={_make_pattern(host): None}, trust_env=False, verify=False)
        except Exception:
            return (
                f"{name} must be a comma-separated list of host names and IP addresses, got {_quote(value or '')} with "
                f"the invalid entry {_quote(host)}. Write IPv6 addresses without brackets and ranges, or remove "
                "the entry."
            )
    return None


def _make_pattern(host: str) -> str:
    """Return the URL pattern that httpx creates for a `NO_PROXY` entry."""
    from ipaddress import ip_address

    if "://" in host:
        return host
    try:
        address = ip_address(host.partition("/")[0])
    except ValueError:
        return f"all://{host}" if host.lower() == "localhost" else f"all://*{host}"
    return f"all://{host}" if address.version == 4 else f"all://[{host}]"


def _read_variable(name: str) -> tuple[str, str | None]:
    """Return the name and value of a variable. The lower-case name takes precedence."""
    upper = name.upper()
    return (name, os.environ[name]) if name in os.environ else (upper, os.environ.get(upper))


def _hide_password(value: str) -> str:
    return _quote(re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1***@", value, flags=re.IGNORECASE | re.DOTALL))


def _quote(value: str) -> str:
    return repr(value if len(value) <= _MAX_LENGTH else value[:_MAX_LENGTH] + "...")
