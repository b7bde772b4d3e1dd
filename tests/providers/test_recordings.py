"""What real vendors sent, over HTTP, against what the openai SDK makes of it.

The recordings are no part of this repository: they are looked for in a folder `shared` beside it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rxloop.errors import ProviderError
from rxloop.events import ContentCompleteEvent, ContentDeltaEvent, UsageEvent
from rxloop.messages import Message
from rxloop.providers import Retry, openai_chat
from rxloop.requests import ModelRequest
from servers import Answer, collect

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "providers"
REQUEST = ModelRequest(messages=[Message.user("hi")])
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the recordings are not in ../shared/corpus/providers")


def load(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def replay_class() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_replay", CORPUS / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Replay


async def ask(http: httpx.AsyncClient, url: str, stream: bool) -> Answer:
    base_url = url.partition("?")[0].removesuffix("/chat/completions")
    provider = openai_chat(
        "m",
        base_url=base_url,
        stream=stream,
        http_client=http,
        retry=Retry(attempts=1),
        thought_tags=False,
        sanitize=False,
    )
    return await collect(provider.call(REQUEST))


def differences(answer: Answer, oracle: dict[str, Any], features: list[str]) -> list[tuple[str, Any, Any]]:
    """What differs between our reading and the SDK's, by name."""
    failed = oracle.get("http_error") or oracle.get("error_mid_stream") or oracle.get("error_in_200_body")
    if failed or answer.error is not None:
        return [] if failed and isinstance(answer.error, ProviderError) else [("error", answer.error, failed)]
    by_hand = str(oracle.get("authority")).startswith("hand")
    choice = oracle["hand_choices" if by_hand else "sdk_choices"][0]
    usage = oracle.get("hand_usage_last" if by_hand else "usage") or oracle.get("usage")
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    counted = [event.usage for event in answer.events if isinstance(event, UsageEvent)]
    deltas = "".join(event.delta for event in answer.events if isinstance(event, ContentDeltaEvent))
    pairs = {
        # We give a refusal as the text of the answer.
        "text": (message.content, choice["text"] or choice.get("refusal") or ""),
        "deltas": (deltas, message.content),
        "calls": (
            [(call.name, call.raw or "") for call in message.tool_calls],
            [(name, arguments or "") for _, name, arguments in choice["tool_calls"]],
        ),
        "finish": (message.raw_finish_reason, choice["finish_reason"]),
        "usage": (
            [(each.input_tokens, each.output_tokens) for each in counted],
            [(usage["prompt_tokens"], usage["completion_tokens"])] if usage else [],
        ),
    }
    if not usage and "x_groq" in features:
        del pairs["usage"]  # it is in a field that the SDK does not know
    return [(name, ours, theirs) for name, (ours, theirs) in pairs.items() if ours != theirs]


@pytest.mark.parametrize(("mode", "part"), [("whole", 0), ("random", 1)])
async def test_every_recorded_answer_means_what_the_sdk_says(mode: str, part: int) -> None:
    replay = replay_class()
    seen = 0
    wrong: list[Any] = []
    async with httpx.AsyncClient() as http:
        for path in sorted((CORPUS / "exchanges").glob("*-chat-*.json"))[part::2]:
            recording = load(path)
            if recording["api"] != "openai-chat":
                continue
            oracle = load(CORPUS / "oracle" / path.name)["exchanges"]
            with replay(recording, mode=mode) as server:
                for exchange, expected in zip(recording["exchanges"], oracle, strict=True):
                    answer = await ask(http, server.base_url + exchange["request"]["path"], exchange["stream"])
                    seen += 1
                    if found := differences(answer, expected, recording["features"]):
                        wrong.append((path.stem, found))
    assert seen > 100
    assert wrong == []
