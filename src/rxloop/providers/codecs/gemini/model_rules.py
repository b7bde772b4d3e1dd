"""The settings and media that each Gemini model accepts."""

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

# The fewest and the most tokens of reasoning that models of 2.5 can be given, and whether it can be turned off.
_BUDGETS = (
    ("2.5-pro", (128, 32_768, False)),
    ("2.5-flash-lite", (512, 24_576, True)),
    ("", (1, 24_576, True)),
)

_TOKENS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""What Google itself makes of efforts for models that count tokens."""

_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}
"""The nearest level of an effort that is none itself."""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What a model takes."""

    model: str
    signs: bool
    """It refuses its own calls when they come back without a signature; so does all from Gemini 3 on."""
    shows_results: bool
    """It takes images and PDFs inside the result of a call."""
    schema_with_tools: bool
    """It takes a schema for its answer beside tools."""
    answers_json: bool
    """It can be held to a schema at all."""
    thinks: Literal["level", "budget"] | None
    """How its thinking is set; None where it does not think, or where nothing is known of it."""

    def level(self, effort: str) -> str:
        """The level of thinking that is nearest to an effort."""
        level = _LEVELS.get(effort, effort)
        if "pro" in self.model:
            if level == "minimal":
                return "low"
            if level == "medium" and "gemini-3-pro" in self.model:
                # The first of its kind has two levels.
                return "high"
        return level

    def tokens(self, effort: str) -> int:
        """The budget that an effort comes to."""
        if effort == "none":
            return self.fitting(0)
        return _TOKENS.get(effort) or self._budget[1]

    def fitting(self, budget: int) -> int:
        """The budget that is nearest to one that was asked for."""
        if self.thinks != "budget" or budget < 0:
            return budget
        fewest, most, off = self._budget
        return 0 if budget == 0 and off else min(max(budget, fewest), most)

    @property
    def _budget(self) -> tuple[int, int, bool]:
        return next(budget for name, budget in _BUDGETS if name in self.model)


def rules_of(model: str) -> ModelRules:
    """The rules of a model; of one that is not known, those that hold for every model."""
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
    """The part of a request that shows an image or a file; None where Gemini does not take its type."""
    kind = media.media_type
    if media.problem is not None or (media.store or "google") != "google":
        return None
    if media.data is not None:
        if media.text is not None:
            return {"inlineData": {"mimeType": "text/plain", "data": b64encode(media.text.encode()).decode()}}
        return {"inlineData": {"mimeType": kind, "data": media.base64}} if _is_taken(kind) else None
    kind = "text/plain" if is_text(kind) else kind
    # Google knows the types of films at YouTube, and of files in its own store.
    known = media.store is not None and not (media.url or "").startswith("gs:")
    if _is_taken(kind) or (known and kind is None):
        return {"fileData": {"fileUri": media.url, **({} if kind is None else {"mimeType": kind})}}
    return None


def fits_results(part: dict[str, Any]) -> bool:
    """Whether such a part may stand inside the result of a call."""
    blob = part.get("inlineData")
    return blob is not None and _IN_RESULTS.fullmatch(blob["mimeType"]) is not None


def _is_taken(kind: str | None) -> bool:
    return kind is not None and _TAKEN.fullmatch(kind) is not None
