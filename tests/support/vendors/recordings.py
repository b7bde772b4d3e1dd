"""The recordings of what real vendors sent, which are no part of this repository.

They are looked for in a folder `shared` beside it.
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


def names(pattern: str = "*", api: str = "chat") -> list[str]:
    """The conversations that were recorded in one API: `chat`, `resp`, `msgs` or `gen`."""
    return sorted(path.stem for path in (CORPUS / "exchanges").glob(f"{pattern}-{api}-[js]-*.json"))


def vendors(api: str = "chat") -> list[str]:
    """Who was recorded; pytest wants one name at least, also where there is nothing."""
    return sorted({name.partition(f"-{api}-")[0] for name in names(api=api)}) or ["nobody"]


def recording(name: str) -> Any:
    """A conversation as it was recorded."""
    return _load(CORPUS / "exchanges" / f"{name}.json")


def oracle(name: str) -> list[dict[str, Any]]:
    """What the vendor's own SDK makes of each exchange of a conversation."""
    return _load(CORPUS / "oracle" / f"{name}.json")["exchanges"]


def loops() -> dict[str, Any]:
    """The agent loops among the conversations, taken apart."""
    return _load(CORPUS / "loops.json") if CORPUS.is_dir() else {}


def choice(expected: dict[str, Any]) -> dict[str, Any]:
    """The message that an exchange amounts to: by hand, where the SDK itself stumbles."""
    return expected["hand_choices" if by_hand(expected) else "sdk_choices"][0]


def by_hand(expected: dict[str, Any]) -> bool:
    """Whether the SDK is no authority on an exchange."""
    return str(expected.get("authority")).startswith("hand")


def _load(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def body(exchange: Any) -> bytes:
    """The bytes of a recorded answer."""
    return _replay.body_of(exchange["response"])


def outline(request: Any) -> Any:
    """The roles, calls and results of the messages of a request."""
    return _replay.roles(request)


Make = Callable[[Any, str, ModelOptions], HTTPModel]
"""Makes the provider of a recorded exchange, at the address of a server, with some options."""


def make_chat(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """The provider of a chat exchange."""
    path = exchange["request"]["path"].partition("?")[0].removesuffix("/chat/completions")
    return openai_chat("m", **{"base_url": address + path, **options})


class Vendor:
    """One replay server for many conversations, and the providers that talk to it."""

    def __init__(self, replay: Any, transport: Transport, make: Make) -> None:
        self.replay = replay
        self._transport: Transport = transport
        self._make = make
        self._providers: dict[tuple[str, bool], HTTPModel] = {}

    def play(self, conversation: Any, first: int = 0, *, mode: str = "whole", seed: int = 0, **shape: Any) -> None:
        """Answer the next requests with this conversation, from exchange number `first` on."""
        self.replay.conv, self.replay.i = conversation, first
        self.replay.mode, self.replay.seed = mode, seed
        self.replay.newline, self.replay.inject = shape.get("newline", "keep"), shape.get("inject", ())
        self.replay.problems = []
        self.replay.requests = []

    def provider(self, exchange: Any) -> HTTPModel:
        """A provider for the path of a recorded exchange, which leaves the text alone."""
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
async def replaying(transport: Transport = "httpx", make: Make = make_chat) -> AsyncGenerator[Vendor]:
    """A replay server for as long as the block lasts."""
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
