"""Costs of encoding requests of a long conversation for each codec, without a network.

    python benchmarks/requests.py [--messages 4000] [--requests 40]

Each request adds a call and its result to the previous request. The result is the median CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from rxloop import Message, ToolCall
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.providers import PRESETS
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.gemini import GeminiCodec
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.state.history import History

if TYPE_CHECKING:
    from rxloop.providers.codecs import CodecFactory

WIRES: dict[str, tuple[CodecFactory, str, str]] = {
    "openai_chat": (ChatCodec, "gpt-4o", "openai"),
    "mistral over chat": (ChatCodec, "m", "mistral"),
    "anthropic_messages": (AnthropicCodec, "claude-sonnet-4-5", "anthropic"),
    "google_gemini": (GeminiCodec, "gemini-3-flash-preview", "google"),
    "openai_responses": (ResponsesCodec, "gpt-5", "openai_responses"),
}
LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


def step(number: int) -> list[Message]:
    """Return a call and its result, and a user message in every tenth step."""
    call = ToolCall(id=f"call_{number}", name="look", arguments={"at": f"page {number}"})
    said = [Message.user(f"And what is on page {number}?")] if number % 10 == 0 else []
    return [*said, Message.assistant(f"I look at {number}.", tool_calls=[call]), Message.tool(call.id, "words " * 20)]


def measured(make: CodecFactory, model: str, preset: str, messages: int, requests: int) -> float:
    """Return the CPU time of a request in milliseconds."""
    wire = make(model, PRESETS[preset], stream=True)
    wire.url("https://api.example.com/v1")
    history, number = History(), 0
    while len(history) < messages:
        history, number = history.append(*step(number)), number + 1
    taken: list[float] = []
    for _ in range(requests):
        history, number = history.append(*step(number)), number + 1
        request = ModelRequest(messages=history, system=(Message.system("Be brief."),), tools=(LOOK,))
        started = time.process_time_ns()
        wire.encode(request, lambda code, text: None)
        taken.append((time.process_time_ns() - started) / 1e6)
    return statistics.median(taken)


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000)
    parser.add_argument("--requests", type=int, default=40)
    given = parser.parse_args()
    for name, (make, model, preset) in WIRES.items():
        print(f"{name:20} {measured(make, model, preset, given.messages, given.requests):8.2f} ms", flush=True)


if __name__ == "__main__":
    main()
