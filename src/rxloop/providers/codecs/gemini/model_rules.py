"""Settings and media that each Gemini model accepts."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Literal

from rxloop.protocol.media import ResolvedMedia
from rxloop.protocol.media_types import is_text

_GENERATION = re.compile(r"gemini-(\d+(?:\.\d+)?)")

_NEWEST = re.compile(r"gemini-[a-z-]*latest")

_DRAWS_OR_SPEAKS = re.compile(r"-(image|tts|live|native-audio)")

# Minimum and maximum thinking budget of 2.5 models in tokens, and whether thinking can be disabled.
_BUDGETS = (
    ("2.5-pro", (128, 32_768, False)),
    ("2.5-flash-lite", (512, 24_576, True)),
    ("", (1, 24_576, True)),
)

_TOKENS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""Token budgets used by Google for effort levels."""

_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}
"""Nearest thinking level of other efforts."""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """Supported model features."""

    model: str
    signs: bool
    """True if calls need signatures, as in Gemini 3."""
    shows_results: bool
    """True if images and PDFs are accepted inside the result of a call."""
    schema_with_tools: bool
    """True if a response schema is accepted together with tools."""
    answers_json: bool
    """True if a response schema is accepted."""
    thinks: Literal["level", "budget"] | None
    """Supported thinking configuration; None if unknown or unsupported."""

    def level(self, effort: str) -> str:
        """Return the thinking level that is nearest to an effort."""
        level = _LEVELS.get(effort, effort)
        if "pro" in self.model:
            if level == "minimal":
                return "low"
            if level == "medium" and "gemini-3-pro" in self.model:
                # Gemini 3 Pro has only two levels.
                return "high"
        return level

    def tokens(self, effort: str) -> int:
        """Convert an effort to a token budget."""
        if effort == "none":
            return self.fitting(0)
        return _TOKENS.get(effort) or self._budget[1]

    def fitting(self, budget: int) -> int:
        """Return the valid budget that is nearest to the requested one."""
        if self.thinks != "budget" or budget < 0:
            return budget
        fewest, most, off = self._budget
        return 0 if budget == 0 and off else min(max(budget, fewest), most)

    @property
    def _budget(self) -> tuple[int, int, bool]:
        return next(budget for name, budget in _BUDGETS if name in self.model)


def rules_of(model: str) -> ModelRules:
    """Look up model rules. Unknown models get conservative defaults."""
    name = model.rpartition("/")[2].lower()
    found = _GENERATION.match(name)
    generation = float(found[1]) if found else 3.0 if _NEWEST.match(name) else 0.0
    third = generation >= 3
    other = _DRAWS_OR_SPEAKS.search(name) is not None
    return ModelRules(
        model=name,
        signs=third,
        shows_results=third,
        schema_with_tools=third and not other,
        answers_json=not name.startswith("gemma") and not other,
        thinks=None if other or generation < 2.5 else "level" if third else "budget",
    )


_TAKEN = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf|text/.+")

_IN_RESULTS = re.compile(r"image/(png|jpeg|webp)|application/pdf|text/plain")


def media_part(media: ResolvedMedia) -> dict[str, Any] | None:
    """Convert an image or file. Return None if unsupported."""
    kind = media.media_type
    if media.problem is not None or (media.store or "google") != "google":
        return None
    if media.data is not None:
        if media.text is not None:
            return {"inlineData": {"mimeType": "text/plain", "data": b64encode(media.text.encode()).decode()}}
        return {"inlineData": {"mimeType": kind, "data": media.base64}} if _is_taken(kind) else None
    kind = "text/plain" if is_text(kind) else kind
    # Google can determine the type for YouTube videos and stored files.
    known = media.store is not None and not (media.url or "").startswith("gs:")
    if _is_taken(kind) or (known and kind is None):
        return {"fileData": {"fileUri": media.url, **({} if kind is None else {"mimeType": kind})}}
    return None


def fits_results(part: dict[str, Any]) -> bool:
    """Return True if the part is accepted inside the result of a call."""
    blob = part.get("inlineData")
    return blob is not None and _IN_RESULTS.fullmatch(blob["mimeType"]) is not None


def _is_taken(kind: str | None) -> bool:
    return kind is not None and _TAKEN.fullmatch(kind) is not None
