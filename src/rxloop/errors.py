"""Every error that rxloop raises, as one tree.

RxloopError
 ├── ConfigurationError      a setting, an argument or an environment variable is wrong or missing
 ├── PipelineError           the operators of a loop do not add up to a loop
 ├── ToolError               raised by tools: its text is the result that the model reads
 ├── InvalidOutput           the model's answer does not fit the output type, however often it was asked
 ├── InvalidInput            an answer to `ctx.ask` that does not fit what was asked
 ├── SlowReader              a reader with overflow="error" fell behind
 ├── EventLogError           the event log failed
 │    ├── ConflictError      another writer appended to the same run
 │    └── UnknownRun         the log has no such run
 ├── ContextBusy             the conversation has a run that has not ended
 ├── ProviderError           a model call failed; `code` and `retryable` say how
 │    ├── AuthenticationError
 │    ├── PermissionDenied
 │    ├── UnknownModel
 │    ├── BadRequest
 │    │    ├── ContextLengthExceeded
 │    │    └── ContentFiltered
 │    ├── RateLimited
 │    ├── Overloaded
 │    ├── ServerError
 │    ├── ProviderTimeout
 │    ├── ProviderConnectionError
 │    └── ProviderProtocolError
 ├── NotFinished             the output of a run that waits for input was read
 └── AttemptError            an attempt ended without an answer; carries the partial `result`
      ├── LimitReached
      ├── RunError
      └── RunCancelled
"""

from __future__ import annotations

from typing import Any, ClassVar


class RxloopError(Exception):
    """The root of everything that rxloop raises."""


class ConfigurationError(RxloopError, ValueError):
    """A setting, an argument or an environment variable is wrong or missing."""


class PipelineError(RxloopError):
    """The operators of a loop do not add up to a loop: nothing answers a request that was sent."""


class ToolError(RxloopError):
    """Raise this in a tool: the text is the result that the model reads."""


class Paused(BaseException):
    """Unwinds a tool or a guard that waits for an answer which is not there yet; let it pass.

    Not an `Exception`, like `asyncio.CancelledError` and for the same reason: a tool's own `except Exception` must not
    take the pause for a failure.
    """


class InvalidInput(RxloopError, ValueError):
    """An answer to a question does not fit what was asked."""


class InvalidOutput(RxloopError):
    """The answer does not fit the agent's `output_type`, and the retries are used up."""


class SlowReader(RxloopError):
    """A reader whose overflow policy is "error" fell behind by more than its buffer."""


class EventLogError(RxloopError):
    """The event log could not read or write."""


class ConflictError(EventLogError):
    """Another writer appended to the same run first."""


class UnknownRun(EventLogError, LookupError):
    """The log holds no run with that id."""


class ContextBusy(RxloopError):
    """A run was started in a conversation in which another run has not ended yet."""


class ProviderError(RxloopError):
    """A model call failed.

    Attributes:
        code: A stable name of the failure for programs, such as `rate_limited`.
        retryable: Whether sending the same request again makes sense.
        status: The HTTP status, where there was an answer.
        retry_after: The seconds that the vendor asked to wait, where it said so.
    """

    code: ClassVar[str] = "provider"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class AuthenticationError(ProviderError):
    """The key is missing, wrong or expired (HTTP 401)."""

    code = "authentication"


class PermissionDenied(ProviderError):
    """The key may not do this (HTTP 403)."""

    code = "permission"


class UnknownModel(ProviderError):
    """The endpoint does not know the model, or the address is wrong (HTTP 404)."""

    code = "unknown_model"


class BadRequest(ProviderError):
    """The vendor refused the request as it is (other HTTP 4xx)."""

    code = "bad_request"


class ContextLengthExceeded(BadRequest):
    """The request is longer than the context window of the model."""

    code = "context_length"


class ContentFiltered(BadRequest):
    """The vendor's content filter refused the request."""

    code = "content_filter"


class RateLimited(ProviderError):
    """Too many requests (HTTP 429); `retry_after` has the wait if the vendor named one."""

    code = "rate_limited"
    retryable = True


class Overloaded(ProviderError):
    """The vendor has no room at the moment (HTTP 503, 529)."""

    code = "overloaded"
    retryable = True


class ServerError(ProviderError):
    """The vendor failed (other HTTP 5xx)."""

    code = "server"
    retryable = True


class ProviderTimeout(ProviderError):
    """No connection, no answer or no further bytes within the time allowed."""

    code = "timeout"
    retryable = True


class ProviderConnectionError(ProviderError):
    """The connection could not be made or broke before the answer was complete."""

    code = "connection"
    retryable = True


class ProviderProtocolError(ProviderError):
    """The vendor answered with something that is not the protocol."""

    code = "protocol"


class NotFinished(RxloopError):
    """The output was read of a run that waits for input; `result.pending` says for what."""


class AttemptError(RxloopError):
    """An attempt of a run ended without an answer.

    Attributes:
        code: What ended it, such as `max_iterations`, `rate_limited` or `canceled`.
        result: The partial `Result`: the messages, thoughts and usage so far.
    """

    def __init__(self, message: str, *, code: str, result: Any) -> None:
        super().__init__(message)
        self.code = code
        self.result = result


class LimitReached(AttemptError):
    """A limit of the run ended it: `max_iterations`, `tool_failures`, `tokens` or `timeout`."""


class RunError(AttemptError):
    """The provider, the pipeline, the tool machinery or the log failed."""


class RunCancelled(AttemptError):
    """The run was cancelled; it can be resumed if it has a log."""
