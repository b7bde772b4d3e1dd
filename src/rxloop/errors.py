"""Exceptions and warnings of rxloop. docs/errors.md shows their hierarchy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copyreg import __newobj__  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import Any, ClassVar, Literal, Protocol


class RxloopError(Exception):
    """Base class of all exceptions of rxloop. They can be pickled and sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Restore the attributes without the constructor, whose arguments differ between the classes.
        return __newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportUnknownVariableType]


class RxloopWarning(UserWarning):
    """Base class of all warnings that rxloop issues with `warnings.warn`."""


class UnpricedModel(RxloopWarning):
    """Warning issued if a model price is unknown, so that its tokens are not included in a cost."""


class ConfigurationError(RxloopError, ValueError):
    """Invalid or missing setting, argument or environment variable."""


class NotPermitted(ConfigurationError):
    """A restricted fork replaces the result of a server tool."""


class PipelineError(RxloopError):
    """Invalid loop. It should be complete, and operators should not violate their contract."""


class InvalidEvent(RxloopError, ValueError):
    """Invalid or unexpected event. Nothing was published."""


class ToolError(RxloopError):
    """Failure of a tool, to be raised in its code. The message becomes the result for the model.

    Attributes:
        value: JSON value for programs, or a `ToolResult`. The model receives it after the message.
        parts: `ImagePart` and `FilePart` objects for the model, as in a result.
        code: Code for programs, see `ToolCompleteEvent.code`.
    """

    code: str = "error"
    # Defaults for subclasses that do not call `__init__`.
    value: Any = None
    parts: Sequence[Any] | None = ()

    def __init__(self, *args: object, value: Any = None, parts: Sequence[Any] | None = ()) -> None:
        super().__init__(*args)
        self.value = value
        self.parts = parts


class Paused(BaseException):
    """Raised to pause a tool or guard. It does not derive from `Exception`, so that tools do not catch it."""


class InvalidInput(RxloopError, ValueError):
    """Invalid answer."""

    input_id: str | None = None
    """Question whose answer does not match its schema, if known."""
    mismatch: str | None = None
    """Clause that names the invalid part, such as `amount must be a JSON integer, got 'ten'`, if known."""


class NotAsked(InvalidInput):
    """Answer to an unknown or already answered question."""


class InvalidOutput(RxloopError):
    """Answer that does not match the agent's `output_type` after all retries."""


class IncompleteOutput(InvalidOutput):
    """Incomplete answer. `code` is `refused`, `content_filter`, `truncated` or `incomplete`."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SlowReader(RxloopError):
    """Buffer overflow caused by a slow reader using the policy "error"."""


class EventLogError(RxloopError):
    """Failed read or write of the event log. If `retryable` is True, the same call may succeed later."""

    retryable: bool = True

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.retryable = type(self).retryable if retryable is None else retryable


class ConflictError(EventLogError):
    """Rejected write, because another writer has appended to the same run."""

    retryable = False


class Fenced(ConflictError):
    """Rejected write, because the lease is now held by another process. Nothing was written."""


class RunExists(ConflictError):
    """Rejected run, because its id is already used. Nothing was written."""


class LogUnreachable(EventLogError):
    """Timeout after repeated calls to the log. The last write may or may not have succeeded."""


class LogRolledBack(EventLogError):
    """Detected log rollback, for example after a failover. Read the run again."""

    retryable = False


class UnknownRun(EventLogError, LookupError):
    """Unknown run id. The log contains no run with this id."""

    retryable = False


class UnknownNote(RxloopError, LookupError):
    """Unknown note id. The memory of the owner contains no note with this id."""


class SessionError(RxloopError):
    """Failed operation of a thinking session. `code` is a stable name for the reason, such as `unknown_session`."""

    code: str = "session"


class InvalidThought(SessionError, ValueError):
    """Invalid thought. Nothing was stored. `fields` maps the wire names of invalid fields to messages."""

    def __init__(self, message: str, fields: Mapping[str, str] | None = None, *, code: str = "invalid_thought") -> None:
        super().__init__(message)
        self.code = code
        self.fields = dict(fields or {})


class UnknownSession(SessionError, LookupError):
    """Unknown session id. This owner has no session with this id."""

    code = "unknown_session"


class SessionFull(SessionError):
    """Rejected thought or session, because a limit is exceeded. Nothing was stored."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SessionConflict(SessionError):
    """Rejected change, because another writer has changed the session. Read it again and retry."""

    code = "conflict"


class ArtifactError(RxloopError):
    """Failed artifact operation."""


class ArtifactExists(ArtifactError):
    """Rejected new artifact, because its id exists. Append to it, use another id, or pass `override=True`."""


class UnknownArtifact(ArtifactError, LookupError):
    """Unknown artifact id or version in this conversation."""


class ContextBusy(RxloopError):
    """Rejected run, because the conversation already has an active run."""


class RunOver(RxloopError):
    """Rejected command to a run that has ended or cannot continue. Start a new run in its conversation."""


class RuntimeClosed(RxloopError):
    """Rejected call to a runtime that is draining or not entered."""


class QueueFull(RxloopError):
    """Rejected run, because too many runs wait for a worker. Try again later."""


class ProviderError(RxloopError):
    """Failed model call.

    Attributes:
        code: Stable name of the failure, such as `rate_limited`.
        retryable: True if the same request may succeed later.
        status: HTTP status code of the response, if any.
        retry_after: Delay in seconds that the vendor requested, if any.
        request_id: Id of the request at the vendor, if any.
    """

    code: ClassVar[str] = "provider"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id


class AuthenticationError(ProviderError):
    """Missing, wrong or expired API key (HTTP 401)."""

    code = "authentication"


class PermissionDenied(ProviderError):
    """API key without permission for this request (HTTP 403)."""

    code = "permission"


class UnknownModel(ProviderError):
    """Unknown model or wrong endpoint URL (HTTP 404)."""

    code = "unknown_model"


class BadRequest(ProviderError):
    """Request that the vendor rejected as invalid (other HTTP 4xx)."""

    code = "bad_request"


class ContextLengthExceeded(BadRequest):
    """Request that exceeds the model's context window."""

    code = "context_length"


class MediaRefused(BadRequest):
    """Request with an image or a file that the vendor refused.

    Attributes:
        scope: Refused media if the vendor named none: those that are new to the model, the older ones, or all.
        path: Path of the refused part in the request, if the vendor named it.
        media: Fingerprints of the media at this path.
        otherwise: Error to raise instead if the request contains no media.
    """

    code = "media_refused"
    scope: Literal["newest", "older", "all"] = "newest"
    path: str = ""
    media: tuple[str, ...] = ()
    otherwise: ProviderError | None = None


class ContentFiltered(BadRequest):
    """Request that the vendor's content filter refused."""

    code = "content_filter"


class RateLimited(ProviderError):
    """Rate limit of the vendor (HTTP 429). Wait for `retry_after` seconds if it is set."""

    code = "rate_limited"
    retryable = True


class Overloaded(ProviderError):
    """Temporary overload of the vendor (HTTP 503 or 529)."""

    code = "overloaded"
    retryable = True


class ServerError(ProviderError):
    """Internal error of the vendor (other HTTP 5xx)."""

    code = "server"
    retryable = True


class ProviderTimeout(ProviderError):
    """Timeout while connecting, waiting for a response or reading it."""

    code = "timeout"
    retryable = True


class ProviderConnectionError(ProviderError):
    """Connection failure before the answer was complete."""

    code = "connection"
    retryable = True


class ProviderProtocolError(ProviderError):
    """Response that violates the vendor's protocol."""

    code = "protocol"


class StrategyError(RxloopError):
    """Rejected step of a strategy. Its state is unchanged. `code` is a stable name, such as `stage_refused`."""

    code: ClassVar[str] = "strategy"


class StageRefused(StrategyError):
    """Rejected change to a stage that cannot follow the current stage.

    Attributes:
        strategy: Name of the strategy.
        stage: Current stage, which does not change.
        target: Requested stage, if any.
        allowed: Stages that may follow, in the order of the strategy.
    """

    code = "stage_refused"

    def __init__(
        self, message: str, *, strategy: str, stage: str, target: str | None, allowed: tuple[str, ...]
    ) -> None:
        super().__init__(message)
        self.strategy = strategy
        self.stage = stage
        self.target = target
        self.allowed = allowed


class StageChoiceRequired(StageRefused):
    """Missing target stage. Choose one from `allowed`."""

    code = "stage_choice_required"


class BranchRefused(StrategyError):
    """Rejected operation on a branch that is missing, closed or not ready."""

    code = "branch_refused"


class PlanRefused(StrategyError):
    """Invalid plan of tool calls, for example because of a cycle or unknown reference."""

    code = "plan_refused"


class NoAnswers(StrategyError):
    """Vote without answers, because every path failed."""

    code = "no_answers"


class EventLike(Protocol):
    """Event interface used in errors. See `rxloop.protocol` for the class."""

    @property
    def kind(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def step(self) -> str | None: ...


class GrammarError(RxloopError):
    """Event stream that violates a rule of the protocol.

    Attributes:
        rule: Stable name of the rule, such as `seq` or `call-twice`.
        event: Event that violates the rule, or None if the stream ended too early.
        other: Earlier event that conflicts with `event`, if any.
    """

    def __init__(self, message: str, *, rule: str, event: EventLike | None, other: EventLike | None) -> None:
        super().__init__(message)
        self.rule = rule
        self.event = event
        self.other = other


class RecordingMismatch(RxloopError, AssertionError):
    """Difference between a run and its recording. It is also an `AssertionError`, for use in tests.

    Attributes:
        position: Number of equal events before the difference.
        expected: Recorded event, or None if the recording has ended.
        actual: Event of the run, or None if the stream has ended.
    """

    def __init__(self, message: str, *, position: int, expected: EventLike | None, actual: EventLike | None) -> None:
        super().__init__(message)
        self.position = position
        self.expected = expected
        self.actual = actual


class ScoreMissing(RxloopError):
    """Missing mean, because the scorer failed or did not return a value."""


class NotFinished(RxloopError):
    """Raised when accessing the output of an unfinished run. See `result.pending` for open questions."""


class ApiError(RxloopError):
    """Failed request of `rxloop.client` to the HTTP API.

    Attributes:
        code: Stable name of the reason, such as `not_found`, or `connection` if there was no response.
        status: HTTP status code of the response, if any.
        fields: Messages by name of the invalid field, if the server sent them.
        retry_after: Delay in seconds that the server requested, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        fields: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.retry_after = code, status, retry_after
        self.fields = dict(fields or {})


class AttemptError(RxloopError):
    """Failed attempt.

    Attributes:
        code: Cause of the end, such as `max_iterations`, `rate_limited` or `canceled`.
        result: Partial `Result` with the messages, thoughts and usage so far.
    """

    def __init__(self, message: str, *, code: str, result: Any) -> None:
        super().__init__(message)
        self.code = code
        self.result = result

    def __repr__(self) -> str:
        suffix = f", task_id={task_id!r}" if (task_id := getattr(self.result, "task_id", None)) is not None else ""
        return f"{type(self).__name__}({str(self)!r}, code={self.code!r}{suffix})"

    def __reduce__(self) -> tuple[Any, ...]:
        import pickle  # imported on first use to speed up importing rxloop

        fields = dict(vars(self))
        try:
            pickle.dumps(self.result)
        except Exception:  # for example a custom output: an error that cannot be unpickled breaks a process pool
            fields["result"] = None
        return __newobj__, (type(self), *self.args), fields  # pyright: ignore[reportUnknownVariableType]


class LimitReached(AttemptError):
    """Attempt ended by a limit: `max_iterations`, `tool_failures`, `tokens`, `timeout` or `attempts`."""


class RunError(AttemptError):
    """Provider, pipeline, tool or log failure. See `result.error.retryable`.

    If the code is `log` or `conflict`, the run has not ended. Its log is unreachable, or it is owned by another
    process.
    """


class RunCancelled(AttemptError):
    """Cancelled run. It can be resumed if it has a log."""
