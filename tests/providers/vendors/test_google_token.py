"""Access tokens of google-auth, from a local token server."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import _exponential_backoff

from rxloop import errors
from rxloop.providers.credentials import GoogleToken


class TokenServer(ThreadingHTTPServer):
    """Server that returns a new access token for each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.given = 0
        self.seconds = 3600
        self.status = 200


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.given += 1
        found: dict[str, Any] = {"access_token": f"token-{self.server.given}", "expires_in": self.server.seconds}
        if self.server.status != 200:
            found = {"error": "invalid_grant", "error_description": "Bad Request"}
        body = orjson.dumps(found)
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@cache
def private_key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def account(tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenServer:
    """Service account credentials for the token server."""
    credentials = tmp_path / "credentials.json"
    fields = {
        "type": "service_account",
        "client_email": "me@my-project.iam.gserviceaccount.com",
        "private_key": private_key(),
        "token_uri": f"http://127.0.0.1:{tokens.server_port}/token",
    }
    credentials.write_bytes(orjson.dumps(fields))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    return tokens


async def test_token_is_reused_until_it_expires(account: TokenServer) -> None:
    token = GoogleToken()
    assert [await token() for _ in range(3)] == ["token-1"] * 3
    assert account.given == 1


async def test_token_that_expires_soon_is_renewed(account: TokenServer) -> None:
    token = GoogleToken()
    account.seconds = 1
    assert [await token() for _ in range(2)] == ["token-1", "token-2"]


async def test_concurrent_calls_renew_the_token_once(account: TokenServer) -> None:
    token = GoogleToken()
    assert await asyncio.gather(*(token() for _ in range(10))) == ["token-1"] * 10
    assert account.given == 1


async def test_refused_account_is_an_authentication_error(account: TokenServer) -> None:
    account.status = 400
    with pytest.raises(errors.AuthenticationError, match="no access token from Google: RefreshError"):
        await GoogleToken()()


async def test_token_server_error_is_retryable(account: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    account.status = 503
    monkeypatch.setattr(_exponential_backoff.ExponentialBackoff, "__next__", remove_delays)
    with pytest.raises(errors.ServerError, match="no access token from Google"):
        await GoogleToken()()


def remove_delays(backoff: Any) -> int:
    """Disable the retry delays of google-auth."""
    if backoff._backoff_count >= backoff._total_attempts:
        raise StopIteration
    backoff._backoff_count += 1
    return backoff._backoff_count


async def test_unreachable_token_server_is_retryable(account: TokenServer, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials.json"
    credentials.write_bytes(credentials.read_bytes().replace(str(account.server_port).encode(), b"1"))
    with pytest.raises(errors.ProviderConnectionError, match="no access token from Google"):
        await GoogleToken()()


async def test_missing_credentials_file_error_suggests_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/at/all.json")
    with pytest.raises(errors.AuthenticationError, match="gcloud auth application-default login"):
        await GoogleToken()()


async def test_missing_google_auth_error_suggests_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'rxloop\[vertex\]'"):
        await GoogleToken()()
