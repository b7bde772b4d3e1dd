"""Every error that rxloop raises, as one tree.

RxloopError
 ├── ConfigurationError      a setting, an argument or an environment variable is wrong or missing
 ├── PipelineError           the operators of a loop do not add up to a loop, or one of them is broken
 ├── InvalidEvent            something was published that the run cannot take; nothing happened
 ├── ToolError               raised by tools: its text is the result that the model reads
 ├── InvalidOutput           the model's answer does not fit the output type, however often it was asked
 ├── InvalidInput            an answer to `ctx.ask` that does not fit what was asked
 │    └── NotAsked           the run does not wait for such an answer, or has another one
 ├── SlowReader              a reader with overflow="error" fell behind
 ├── EventLogError           the event log failed
 │    ├── ConflictError      another writer appended to the same run
 │    │    ├── Fenced        the turn of the conversation belongs to somebody else now
 │    │    └── RunExists     a new run has the id of one that the log holds
 │    ├── LogUnreachable     the log was asked again and again, and did not answer
 │    ├── LogWentBack        the log lacks an event that it has shown: it was restored, or failed over
 │    └── UnknownRun         the log has no such run
 ├── SessionError            a thinking session refused a thought, or could not be used; `code` says why
 │    ├── InvalidThought     a thought does not fit; nothing was stored
 │    ├── UnknownSession     there is no session of that id, for this owner
 │    ├── SessionFull        a limit of the session, or of its owner, is reached
 │    └── SessionConflict    another writer changed the session first
 ├── ArtifactError           an artifact cannot be written or read; nothing was written
 │    ├── ArtifactExists     there is one of that id, and it was not to be begun anew
 │    └── UnknownArtifact    the conversation has no artifact of that id
 ├── ContextBusy             the conversation has a run that has not ended
 ├── RunOver                 something was to be said to a run whose end is decided; it was not said
 ├── RuntimeClosed           a runtime takes nothing new: it drains, or is not entered
 ├── QueueFull               too many runs wait for a worker
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
 ├── StrategyError           a reasoning strategy cannot do what it was asked to
 │    ├── StageRefused       the stage cannot follow the current one
 │    │    └── StageChoiceRequired    several stages may follow, and none was named
 │    ├── BranchRefused      the branch is not there, not open any more, or not ready
 │    ├── PlanRefused        a plan of tool calls cannot be carried out
 │    └── NoAnswers          a vote without a single vote
 ├── GrammarError            a stream of events breaks a rule of the protocol; raised by `op.grammar`
 ├── RecordingMismatch       a run is not what was recorded; raised by `op.compare`
 ├── NotFinished             the output of a run that waits for input was read
 ├── ScoreMissing            an experiment has no mean, since a scorer failed or gave no value
 ├── ApiError                a server with the HTTP API refused a request, or cannot be reached
 └── AttemptError            an attempt ended without an answer; carries the partial `result`
      ├── LimitReached
      ├── RunError
      └── RunCancelled

And what it only warns of:

RxloopWarning
 └── UnpricedModel           the price of a model is not known, and its tokens are left out of a cost
"""

from __future__ import annotations

from collections.abc import Mapping
from copyreg import __newobj__  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rxloop.protocol.envelope import Event


class RxloopError(Exception):
    """The root of everything that rxloop raises. Errors go through pickle, and so from one process to another."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor, whose arguments differ: what it made of them is restored.
        return __newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportUnknownVariableType]


class RxloopWarning(UserWarning):
    """The root of what rxloop warns of, by `warnings.warn`."""


class UnpricedModel(RxloopWarning):
    """The price of a model is not known: its tokens are left out of a cost."""


class ConfigurationError(RxloopError, ValueError):
    """A setting, an argument or an environment variable is wrong or missing."""


class PipelineError(RxloopError):
    """The operators of a loop do not add up to a loop, or one of them is broken: the run cannot come to its end."""


class InvalidEvent(RxloopError, ValueError):
    """Something was published that cannot come now, or cannot be written as JSON; nothing else happened."""


class ToolError(RxloopError):
    """Raise this in a tool: the text is the result that the model reads."""


class Paused(BaseException):
    """Unwinds a tool or a guard that waits for an answer; not an `Exception`, which tools may catch."""


class InvalidInput(RxloopError, ValueError):
    """An answer to a question does not fit what was asked."""


class NotAsked(InvalidInput):
    """The run does not wait for such an answer, or has another one already."""


class InvalidOutput(RxloopError):
    """The answer does not fit the agent's `output_type`, and the retries are used up."""


class SlowReader(RxloopError):
    """A reader whose overflow policy is "error" fell behind by more than its buffer."""


class EventLogError(RxloopError):
    """The event log could not read or write.

    Attributes:
        retryable: Whether the same call may succeed in a moment.
    """

    retryable: bool = True

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.retryable = type(self).retryable if retryable is None else retryable


class ConflictError(EventLogError):
    """Another writer appended to the same run first."""

    retryable = False


class Fenced(ConflictError):
    """The turn of the conversation belongs to somebody else now, who goes on with the run; nothing was written."""


class RunExists(ConflictError):
    """A new run was to begin under the id of one that the log holds already; nothing was written."""


class LogUnreachable(EventLogError):
    """The log was asked again for as long as that makes sense, and did not answer; whether it wrote is not known."""


class LogWentBack(EventLogError):
    """The log lacks an event that it has shown, or has another one in its place, as after a restore or a failover."""

    retryable = False


class UnknownRun(EventLogError, LookupError):
    """The log holds no run with that id."""

    retryable = False


class SessionError(RxloopError):
    """A thinking session refused a thought, or could not be used.

    Attributes:
        code: A stable name of the reason for programs, such as `unknown_session`.
    """

    code: str = "session"


class InvalidThought(SessionError, ValueError):
    """A thought does not fit, and nothing was stored.

    Attributes:
        fields: What is wrong, by field, in the names of the wire.
    """

    def __init__(self, message: str, fields: Mapping[str, str] | None = None, *, code: str = "invalid_thought") -> None:
        super().__init__(message)
        self.code = code
        self.fields = dict(fields or {})


class UnknownSession(SessionError, LookupError):
    """There is no session of that id, for this owner."""

    code = "unknown_session"


class SessionFull(SessionError):
    """A limit of the session, or of its owner, is reached; nothing was stored."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SessionConflict(SessionError):
    """Another writer changed the session first."""

    code = "conflict"


class ArtifactError(RxloopError):
    """An artifact cannot be written or read: its id, its range, its version or its store does not allow it."""


class ArtifactExists(ArtifactError):
    """The conversation has an artifact of that id, and it was not to be begun anew; nothing was written."""


class UnknownArtifact(ArtifactError, LookupError):
    """The conversation has no artifact of that id, or not in that version."""


class ContextBusy(RxloopError):
    """A run was started in a conversation in which another run has not ended yet."""


class RunOver(RxloopError):
    """Something was to be said to a run whose end is decided, or that nobody goes on with: it was not said."""


class RuntimeClosed(RxloopError):
    """A runtime takes nothing new: it drains, or is not entered."""


class QueueFull(RxloopError):
    """Too many runs wait for a worker, so that a new one is not started; try again later."""


class ProviderError(RxloopError):
    """A model call failed.

    Attributes:
        code: A stable name of the failure for programs, such as `rate_limited`.
        retryable: Whether sending the same request again makes sense.
        status: The HTTP status, where there was an answer.
        retry_after: The seconds that the vendor asked to wait, where it said so.
        request_id: The id by which the vendor finds the request again, where it sent one.
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


class StrategyError(RxloopError):
    """A reasoning strategy cannot do what it was asked to; nothing has changed.

    Attributes:
        code: A stable name of the reason for programs, such as `stage_refused`.
    """

    code: ClassVar[str] = "strategy"


class StageRefused(StrategyError):
    """A stage cannot follow the current one.

    Attributes:
        strategy: The strategy.
        stage: The current stage, in which the flow remains.
        target: The stage that was asked for, where one was.
        allowed: The stages that may follow, in the order of the strategy.
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
    """Several stages may follow the current one, and none was named; `allowed` has the choices."""

    code = "stage_choice_required"


class BranchRefused(StrategyError):
    """A branch is not there, not open any more, or not ready for what was asked."""

    code = "branch_refused"


class PlanRefused(StrategyError):
    """A plan of tool calls cannot be carried out: it has no steps, a cycle, or a reference to nothing."""

    code = "plan_refused"


class NoAnswers(StrategyError):
    """A vote in which nobody voted: every path failed."""

    code = "no_answers"


class GrammarError(RxloopError):
    """A stream of events breaks a rule of the protocol.

    Attributes:
        rule: A stable name of the rule for programs, such as `seq` or `call-twice`.
        event: The event that breaks it; None where the stream ended too early.
        other: The event before it that it does not fit, where there is one.
    """

    def __init__(self, message: str, *, rule: str, event: Event | None, other: Event | None) -> None:
        super().__init__(message)
        self.rule = rule
        self.event = event
        self.other = other


class RecordingMismatch(RxloopError, AssertionError):
    """A run is not what was recorded; an `AssertionError` too, because tests compare.

    Attributes:
        place: How many of the events that count were the same.
        expected: The recorded event; None where the recording had ended.
        happened: The event that came; None where the stream had ended.
    """

    def __init__(self, message: str, *, place: int, expected: Event | None, happened: Event | None) -> None:
        super().__init__(message)
        self.place = place
        self.expected = expected
        self.happened = happened


class ScoreMissing(RxloopError):
    """A mean was asked for, and the scorer failed for a trial, or there is no value to average."""


class NotFinished(RxloopError):
    """The output was read of a run that waits for input; `result.pending` says for what."""


class ApiError(RxloopError):
    """A server with the HTTP API refused a request of `rxloop.client`, or cannot be reached.

    Attributes:
        code: A stable name of the reason for programs, such as `not_found`; `connection` where there was no answer.
        status: The HTTP status, where there was an answer.
        fields: What is wrong with which field, where the server said so.
        retry_after: The seconds that the server asked to wait, where it said so.
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
    """An attempt of a run ended without an answer.

    Attributes:
        code: What ended it, such as `max_iterations`, `rate_limited` or `canceled`.
        result: The partial `Result`: the messages, thoughts and usage so far.
    """

    def __init__(self, message: str, *, code: str, result: Any) -> None:
        super().__init__(message)
        self.code = code
        self.result = result

    def __repr__(self) -> str:
        where = f", task_id={task_id!r}" if (task_id := getattr(self.result, "task_id", None)) is not None else ""
        return f"{type(self).__name__}({str(self)!r}, code={self.code!r}{where})"

    def __reduce__(self) -> tuple[Any, ...]:
        import pickle  # here, since importing rxloop is quicker without it

        fields = dict(vars(self))
        try:
            pickle.dumps(self.result)
        except Exception:  # an output of the user's own, say: an error that cannot be read breaks a process pool
            fields["result"] = None
        return __newobj__, (type(self), *self.args), fields  # pyright: ignore[reportUnknownVariableType]


class LimitReached(AttemptError):
    """A limit of the run ended it: `max_iterations`, `tool_failures`, `tokens`, `timeout` or `attempts`."""


class RunError(AttemptError):
    """The provider, the pipeline, the tool machinery or the log failed; `result.error.retryable` says if it may pass.

    With the codes `log` and `conflict` the run has not ended: its log is out of reach, or another process goes on.
    """


class RunCancelled(AttemptError):
    """The run was cancelled; it can be resumed if it has a log."""
