"""Recorded conversations continued with every other vendor.

Each one continues at its end and at a position derived from its name, or at every position with RXLOOP_RECORDINGS=all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from rxloop.protocol.messages import Message
from support.vendors.other_vendors import LOOK, OTHER_VENDORS, encode_request
from support.vendors.recorded_histories import read_history
from support.vendors.recordings import needs_recordings, recording_names
from support.vendors.replay_variants import ALL_VARIANTS
from support.vendors.vendor_rules import CHECKS


@needs_recordings
@pytest.mark.parametrize("api", CHECKS)
async def test_every_recorded_history_continues_with_every_vendor(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "a-key")
    wrong: list[str] = []
    for name in recording_names(api=api):
        history = await read_history(name)
        for other, vendor in OTHER_VENDORS.items():
            wire = vendor.make_codec()
            for end in _list_ends(name, history):
                for more in ([], [Message.user("And now?")]):
                    try:
                        vendor.check(encode_request(wire, [*history[:end], *more], tools=(LOOK,)))
                    except AssertionError as error:
                        wrong.append(f"{name} up to {end}, to {other}: {error!s:.300}")
    assert not wrong, "\n".join([f"{len(wrong)}", *wrong[:40]])


def _list_ends(name: str, history: Sequence[Message]) -> list[int]:
    """List history lengths that can precede a request."""
    answers = [place for place, message in enumerate(history) if message.role == "assistant"]
    every = sorted({end for place in answers for end in (place or 1, place + 1)})
    if ALL_VARIANTS or not every:
        return every
    return sorted({every[zlib.crc32(name.encode()) % len(every)], *every[-2:]})
