"""Recorded responses of real vendors, which are not part of this repository.

They are read from a folder `shared` next to the checkout.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop.providers import HTTPModel, ModelOptions, Retry, openai_chat
from rxloop.providers.transport import Transport

CORPUS = Path(__file__).parents[4] / "shared" / "corpus" / "providers"
needs_recordings = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the recordings are not in ../shared/corpus/providers, beside this repository"
)


def recording_names(pattern: str = "*", api: str = "chat") -> list[str]:
    """Return the names of the recorded conversations of an API: `chat`, `resp`, `msgs` or `gen`."""
    return sorted(path.stem for path in (CORPUS / "exchanges").glob(f"{pattern}-{api}-[js]-*.json"))


def recorded_vendors(api: str = "chat") -> list[str]:
    """Return the recorded vendors. Pytest needs at least one name even without recordings."""
    return sorted({name.partition(f"-{api}-")[0] for name in recording_names(api=api)}) or ["nobody"]


def recording(name: str) -> Any:
    """Return a recorded conversation."""
    return _load(CORPUS / "exchanges" / f"{name}.json")


def oracle(name: str) -> list[dict[str, Any]]:
    """Parse each recorded exchange with the vendor's SDK."""
    return _load(CORPUS / "oracle" / f"{name}.json")["exchanges"]


def loops() -> dict[str, Any]:
    """Return the parsed agent loops of the conversations."""
    return _load(CORPUS / "loops.json") if CORPUS.is_dir() else {}


def choice(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the message of an exchange. Messages written by hand replace errors of the SDK."""
    return expected["hand_choices" if is_written_by_hand(expected) else "sdk_choices"][0]


def is_written_by_hand(expected: dict[str, Any]) -> bool:
    """Return True if the SDK misreads an exchange."""
    return str(expected.get("authority")).startswith("hand")


def _load(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def body(exchange: Any) -> bytes:
    """Read a recorded response."""
    return _replay.body_of(exchange["response"])


def outline(request: Any) -> Any:
    """Return roles, calls and results from a request."""
    return _replay.roles(request)


Make = Callable[[Any, str, ModelOptions], HTTPModel]
"""Factory of the provider for a recorded exchange, given the server address and options."""


def make_chat(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """Return the provider of a chat exchange."""
    path = exchange["request"]["path"].partition("?")[0].removesuffix("/chat/completions")
    return openai_chat("m", **{"base_url": address + path, **options})


class Vendor:
    """Replay server for many conversations, and its providers."""

    def __init__(self, replay: Any, transport: Transport, make: Make) -> None:
        self.replay = replay
        self._transport: Transport = transport
        self._make = make
        self._providers: dict[tuple[str, bool], HTTPModel] = {}

    def replay_conversation(
        self, conversation: Any, first: int = 0, *, mode: str = "whole", seed: int = 0, **shape: Any
    ) -> None:
        """Answer the next requests with this conversation, starting at exchange `first`."""
        self.replay.conv, self.replay.i = conversation, first
        self.replay.mode, self.replay.seed = mode, seed
        self.replay.newline, self.replay.inject = shape.get("newline", "keep"), shape.get("inject", ())
        self.replay.problems = []
        self.replay.requests = []

    def provider(self, exchange: Any) -> HTTPModel:
        """Return a provider for the path of a recorded exchange. It does not change the text."""
        where = (exchange["request"]["path"], exchange["stream"])
        if where not in self._providers:
            options: ModelOptions = {
                "stream": exchange["stream"],
                "transport": self._transport,
                "retry": Retry(attempts=1),
                "thought_tags": False,
                "sanitize": False,
            }
            self._providers[where] = self._make(exchange, self.replay.base_url, options)
        return self._providers[where]

    async def aclose(self) -> None:
        """Close the providers."""
        for provider in self._providers.values():
            await provider.aclose()


@contextlib.asynccontextmanager
async def replay_server(transport: Transport = "httpx", make: Make = make_chat) -> AsyncGenerator[Vendor]:
    """Start a replay server for the duration of the block."""
    with _replay.Replay({"exchanges": []}) as replay:
        vendor = Vendor(replay, transport, make)
        try:
            yield vendor
        finally:
            await vendor.aclose()


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_replay", CORPUS / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_replay: Any = _module() if CORPUS.is_dir() else None
