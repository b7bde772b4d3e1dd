"""Going on from an answer that the vendor has stored, so that only what is new is sent."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

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

    def goes_on(self, before: bytes | None, whole: bytes) -> bool:
        """Whether the vendor has what was said before an answer that it has stored, so that it knows the conversation.

        Args:
            before: The digest of the messages before that answer; None where nothing comes after it.
            whole: That of all messages.
        """
        fits = before in self._sent
        self.note(whole)
        return fits

    def note(self, whole: bytes) -> None:
        """Note that the vendor will have a conversation, by its digest."""
        self._sent[whole] = None
        self._sent.move_to_end(whole)
        if len(self._sent) > _KEPT:
            self._sent.popitem(last=False)
