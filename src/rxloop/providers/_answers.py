"""Events of an answer, as providers around other providers see them."""

from __future__ import annotations

from rxloop.errors import ProviderError
from rxloop.protocol.events import Event, LLMFailedEvent, LLMNoticeEvent, UsageEvent
from rxloop.protocol.messages import ErrorInfo


def begins_answer(event: Event) -> bool:
    """Whether an event belongs to the answer itself: news of the request, and a count of tokens, do not."""
    return not isinstance(event, LLMFailedEvent | LLMNoticeEvent | UsageEvent)


def failed(error: Exception, wait: float) -> LLMFailedEvent:
    """The news that a request failed, and that the next one is sent after `wait` seconds."""
    code = error.code if isinstance(error, ProviderError) else "error"
    status = error.status if isinstance(error, ProviderError) else None
    return LLMFailedEvent(error=ErrorInfo(code=code, message=str(error)), retryable=True, retry_in=wait, status=status)
