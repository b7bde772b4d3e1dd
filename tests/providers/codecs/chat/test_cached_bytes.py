"""Memory of cached encoded messages."""

import tracemalloc

from rxloop import Message
from rxloop.pipeline.requests import ModelRequest
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from support.vendors.codecs import ignore_notice

MESSAGES = 200


def test_cached_form_does_not_retain_the_encoding_buffer() -> None:
    encoder = RequestEncoder("m", PRESETS["openai"], stream=True)
    encoder.encode(ModelRequest(messages=[Message.user("first")]), ignore_notice)
    messages = [Message.user(f"Message {number}.") for number in range(MESSAGES)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        encoder.encode(ModelRequest(messages=messages), ignore_notice)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    # A bytes object within a tuple.
    assert kept < MESSAGES * 400
