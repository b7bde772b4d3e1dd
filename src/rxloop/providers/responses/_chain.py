"""Going on from an answer that the vendor has stored, so that only what is new is sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from rxloop.protocol.messages import Message
from rxloop.providers.wire import Notice

_KEPT = 1_000
"""How many conversations are known by what has been sent of them."""


class Form(NamedTuple):
    """What a message became."""

    data: bytes
    """Its items, with commas between them."""
    calls: tuple[str, ...] = ()
    """The ids of the calls in it, or of the one that it answers, as they are sent."""
    custom: frozenset[str] = frozenset()
    """Those whose results have another form."""
    response: str | None = None
    """The id under which the vendor has stored it."""


class Chain:
    """Knows which conversations the vendor has, by what this process has sent.

    A conversation that was changed since then, as by a compressor, or that another process began, is sent whole: what
    the vendor would add to it by itself is not what was asked.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def forget(self) -> None:
        """Send everything whole from now on, until it has been sent once."""
        self._sent.clear()

    def find(self, forms: Sequence[tuple[Message, Form]], notice: Notice) -> tuple[int, str | None]:
        """From which message on a conversation is new to the vendor, and the id of the answer before that.

        Args:
            forms: The messages, and what they became.
            notice: Told where a conversation that has such an answer is sent whole.
        """
        newest = next((place for place in reversed(range(len(forms))) if forms[place][1].response), None)
        digest, before = sha256(), b""
        for place, (message, form) in enumerate(forms):
            if place == newest:
                before = digest.digest()
            digest.update(b"%b %d %b " % (message.role.encode(), len(form.data), form.data))
        fits = newest is not None and newest + 1 < len(forms) and before in self._sent
        self._note(digest.digest())
        if newest is None:
            return 0, None
        if not fits:
            notice("left_out", "previous_response_id: the conversation is not the one that was sent, and goes whole")
            return 0, None
        return newest + 1, forms[newest][1].response

    def _note(self, digest: bytes) -> None:
        self._sent[digest] = None
        self._sent.move_to_end(digest)
        if len(self._sent) > _KEPT:
            self._sent.popitem(last=False)
