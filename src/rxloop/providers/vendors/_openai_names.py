"""What the names of OpenAI's models say of them, whoever serves them."""

from __future__ import annotations

import re

_REASONS = re.compile(r"o1(?!-mini|-preview)|o[3-9]|gpt-[5-9](?!.*-chat)|codex|computer-use")
_ANSWERS_AT_ONCE = re.compile(r"gpt-[34]|gpt-[5-9].*-chat|chatgpt")


def wants_responses(model: str) -> bool:
    """Whether one of OpenAI's models does better over Responses, or answers nowhere else: those that reason."""
    return _REASONS.match(_bare(model)) is not None


def never_reasons(model: str) -> bool:
    """Whether it is one of OpenAI's models that answer at once; of what has another name nothing is known."""
    return _ANSWERS_AT_ONCE.match(_bare(model)) is not None


def _bare(model: str) -> str:
    """The name without the gateway's word for its maker, and that of a tuned model without what says so."""
    return model.rpartition("/")[2].removeprefix("ft:")
