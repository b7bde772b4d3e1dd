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

_OTHER_OUTPUT = re.compile(r"-(image|tts|live|native-audio)")

# Minimum and maximum thinking budget of 2.5 models in tokens, and whether thinking can be disabled.
_BUDGETS = (("2.5-pro", (128, 32_768, False)), ("2.5-flash-lite", (512, 24_576, True)), ("", (1, 24_576, True)))

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
    accepts_media_results: bool
    """True if images and PDFs are accepted inside the result of a call."""
    schema_with_tools: bool
    """True if a response schema is accepted together with tools."""
    answers_json: bool
    """True if a response schema is accepted."""
    thinks: Literal["level", "budget"] | None
    """Supported thinking configuration; None if unknown or unsupported."""

    def find_level(self, effort: str) -> str:
        """Return the thinking level that is nearest to an effort."""
        level = _LEVELS.get(effort, effort)
        if "pro" in self.model:
            if level == "minimal":
                return "low"
            if level == "medium" and "gemini-3-pro" in self.model:
                # Gemini 3 Pro has only two levels.
                return "high"
        return level

    def find_budget(self, effort: str) -> int:
        """Convert an effort to a token budget."""
        if effort == "none":
            return self.fit_budget(0)
        return _TOKENS.get(effort) or self._budget[1]

    def fit_budget(self, budget: int) -> int:
        """Return the valid budget that is nearest to the requested one."""
        if self.thinks != "budget" or budget < 0:
            return budget
        smallest, largest, can_be_disabled = self._budget
        return 0 if budget == 0 and can_be_disabled else min(max(budget, smallest), largest)

    @property
    def _budget(self) -> tuple[int, int, bool]:
        return next(budget for name, budget in _BUDGETS if name in self.model)


def find_rules(model: str) -> ModelRules:
    """Look up model rules. Unknown models get conservative defaults."""
    name = model.rpartition("/")[2].lower()
    match = _GENERATION.match(name)
    generation = float(match[1]) if match else 3.0 if _NEWEST.match(name) else 0.0
    is_gemini3 = generation >= 3
    has_other_output = _OTHER_OUTPUT.search(name) is not None
    return ModelRules(
        model=name,
        signs=is_gemini3,
        accepts_media_results=is_gemini3,
        schema_with_tools=is_gemini3 and not has_other_output,
        answers_json=not name.startswith("gemma") and not has_other_output,
        thinks=None if has_other_output or generation < 2.5 else "level" if is_gemini3 else "budget",
    )


_ACCEPTED_TYPES = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf|text/.+")

_RESULT_TYPES = re.compile(r"image/(png|jpeg|webp)|application/pdf|text/plain")


def make_media_part(media: ResolvedMedia) -> dict[str, Any] | None:
    """Convert an image or file. Return None if unsupported."""
    kind = media.media_type
    if media.problem is not None or (media.store or "google") != "google":
        return None
    if media.data is not None:
        if media.text is not None:
            return {"inlineData": {"mimeType": "text/plain", "data": b64encode(media.text.encode()).decode()}}
        return {"inlineData": {"mimeType": kind, "data": media.base64}} if _is_accepted(kind) else None
    kind = "text/plain" if is_text(kind) else kind
    # Google can determine the type for YouTube videos and stored files.
    is_known = media.store is not None and not (media.url or "").startswith("gs:")
    if _is_accepted(kind) or (is_known and kind is None):
        return {"fileData": {"fileUri": media.url, **({} if kind is None else {"mimeType": kind})}}
    return None


def is_result_part(part: dict[str, Any]) -> bool:
    """Return True if the part is accepted inside the result of a call."""
    blob = part.get("inlineData")
    return blob is not None and _RESULT_TYPES.fullmatch(blob["mimeType"]) is not None


def _is_accepted(kind: str | None) -> bool:
    return kind is not None and _ACCEPTED_TYPES.fullmatch(kind) is not None
