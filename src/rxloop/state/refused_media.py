"""Images and files that a vendor refused. Later requests omit them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart
from rxloop.state.history import History

_LONGEST_REASON = 300
_BEFORE_REASON = r"(?s)\A.{0,300}? answered [^:]{0,60}: "
"""Not compiled at import: most runs have no refused media."""


class RefusedMedia:
    """Immutable set of refused media fingerprints, used to omit media from requests."""

    __slots__ = ("_changed", "_view", "reasons")

    def __init__(self, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons: Mapping[str, str] = reasons or {}
        """Vendor's reason by fingerprint."""
        self._changed: dict[int, tuple[Message, Message]] = {}
        """Cached replacements for messages, so that each replacement is only encoded once."""
        self._view: tuple[History, History] | None = None
        """Last history and its replacement, cached so that only new messages are processed."""

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefusedMedia) and self.reasons == other.reasons

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<RefusedMedia of {len(self.reasons)}>"

    def add(self, reasons: Mapping[str, str]) -> RefusedMedia:
        """Return a copy with additional fingerprints."""
        return RefusedMedia({**self.reasons, **reasons}) if reasons else self

    def omit(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Replace parts that a vendor refused with text.

        Returns:
            The messages, or the same object if it contains no such part.
        """
        if not isinstance(messages, History):
            omitted = [self._omit_from_message(message) for message in messages]
            same = all(new is old for new, old in zip(omitted, messages, strict=True))
            return messages if same else omitted
        source, view = self._view or (None, messages)
        start = 0
        if source is not None and messages.extends(source):
            start = len(source)
        else:
            view = messages
        added = messages[start:]
        omitted = [self._omit_from_message(message) for message in added]
        if all(new is old for new, old in zip(omitted, added, strict=True)) and (not start or view is source):
            view = messages
        elif not start or view is source:
            view = History([*messages[:start], *omitted])
        else:
            view = view.append(*omitted)
        self._view = messages, view
        return view

    def _omit_from_message(self, message: Message) -> Message:
        if isinstance(message.content, str):
            return message
        known = self._changed.get(id(message))
        if known is not None:
            return known[1]
        parts = [self._replace_refused(part) for part in message.content]
        if all(new is old for new, old in zip(parts, message.content, strict=True)):
            return message
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        content = "\n".join(texts) if len(texts) == len(parts) else parts
        changed = message.model_copy(update={"content": content})
        # Keep the original message too, because its id is only valid while it exists.
        self._changed[id(message)] = message, changed
        return changed

    def _replace_refused(self, part: TextPart | ImagePart | FilePart) -> TextPart | ImagePart | FilePart:
        if isinstance(part, TextPart):
            return part
        # Most runs have no refused media, so import the module only here.
        from rxloop.protocol.media import fingerprint

        reason = self.reasons.get(fingerprint(part))
        if reason is None:
            return part
        return TextPart(text=f"[{part.type} omitted: the vendor refused it: {reason}]")


def vendor_reason(message: str) -> str:
    """Extract the vendor's own error message."""
    return re.sub(_BEFORE_REASON, "", message)[:_LONGEST_REASON]


def select_refused(
    layers: Iterable[Message],
    messages: Sequence[Message],
    named: Sequence[str],
    scope: Literal["newest", "older", "all"],
) -> dict[str, str]:
    """Choose the images and files to omit after a refusal.

    Args:
        layers: The system and tail messages of the request.
        messages: The history of the request.
        named: Fingerprints of the parts that the vendor named.
        scope: The parts to omit if the vendor named none. `newest` are the parts after the last assistant message,
            `older` are those before it.

    Returns:
        Placeholders of the chosen parts, by fingerprint. Empty if the request has no media.
    """
    answered = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=-1)
    old, new = _media(messages[: answered + 1]), _media(messages[answered + 1 :])
    every = {**_media(layers), **old, **new}
    if meant := {key: every[key] for key in named if key in every}:
        return meant
    chosen = {"newest": new, "older": {key: old[key] for key in old if key not in new}, "all": every}[scope]
    return chosen or every


def _media(messages: Iterable[Message]) -> dict[str, str]:
    from rxloop.protocol.media import resolve

    return {
        media.fingerprint: part.placeholder
        for message in messages
        for part in message.media
        if (media := resolve(part)).problem is None and media.kind != "text"
    }
