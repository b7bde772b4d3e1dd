"""What a message keeps of its encoded form takes no more memory than it is long."""

import tracemalloc

from rxloop import Message
from rxloop.pipeline.requests import ModelRequest
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from support.vendors.codecs import ignore_notice

MESSAGES = 200


def test_a_message_keeps_its_encoded_bytes_and_not_the_buffer_that_they_were_written_to() -> None:
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

    # A bytes object, and the tuple that it stands in.
    assert kept < MESSAGES * 400
