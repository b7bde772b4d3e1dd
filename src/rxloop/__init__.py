"""rxloop: an LLM agent's run as one ordered stream of typed events, made by a pipeline of RxPY operators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxloop._version import __version__

if TYPE_CHECKING:
    from rxloop import operators as op
    from rxloop.agent import Agent
    from rxloop.context import (
        ChainedCompressor,
        CompositeWorkspace,
        FolderWorkspace,
        Scratchpad,
        SemanticCompressor,
        SlidingWindowCompressor,
        TextWorkspace,
        ThinkingResult,
        TokenBudgetCompressor,
        TokenEstimator,
    )
    from rxloop.differences import RunCost, RunDiff, RunSide, diff
    from rxloop.envelope import UnknownEvent
    from rxloop.errors import (
        AttemptError,
        AuthenticationError,
        BadRequest,
        BranchRefused,
        ConfigurationError,
        ConflictError,
        ContentFiltered,
        ContextBusy,
        ContextLengthExceeded,
        EventLogError,
        GrammarError,
        InvalidInput,
        InvalidOutput,
        InvalidThought,
        LimitReached,
        NoAnswers,
        NotFinished,
        Overloaded,
        PermissionDenied,
        PipelineError,
        PlanRefused,
        ProviderConnectionError,
        ProviderError,
        ProviderProtocolError,
        ProviderTimeout,
        RateLimited,
        RecordingMismatch,
        RunCancelled,
        RunError,
        RxloopError,
        ServerError,
        SessionConflict,
        SessionError,
        SessionFull,
        SlowReader,
        StageChoiceRequired,
        StageRefused,
        StrategyError,
        ToolError,
        UnknownModel,
        UnknownRun,
        UnknownSession,
    )
    from rxloop.eventlog import MemoryEventLog
    from rxloop.eventlog.sessions import SqliteSessionStore
    from rxloop.eventlog.sqlite import SqliteEventLog
    from rxloop.events import (
        AnyEvent,
        ArtifactUpdateEvent,
        AuthRequiredEvent,
        CheckpointEvent,
        ContentCompleteEvent,
        ContentDeltaEvent,
        ContextCompressedEvent,
        CustomEvent,
        Event,
        GapEvent,
        InputReceivedEvent,
        InputRequiredEvent,
        LLMCallEvent,
        LLMFailedEvent,
        MessageAddedEvent,
        PendingInput,
        SessionLink,
        StageEvent,
        StatusUpdateEvent,
        SubtaskEvent,
        TaskEvent,
        ThinkingFailedEvent,
        ThoughtDeltaEvent,
        ThoughtStreamEvent,
        ToolCallDeltaEvent,
        ToolCompleteEvent,
        ToolProgressEvent,
        ToolStartEvent,
        UsageEvent,
        external,
        from_json,
        protocol_schema,
    )
    from rxloop.messages import ErrorInfo, FilePart, ImagePart, Message, Part, TextPart, ToolCall, Usage
    from rxloop.options import ForkOptions, RunOptions
    from rxloop.playback import RecordedStream, Replay, follow, replay
    from rxloop.protocols import (
        Budget,
        Clock,
        Compressor,
        EventLog,
        Provider,
        RunRecord,
        SessionChange,
        SessionRecord,
        SessionStore,
        TokenCounter,
        Tool,
        ToolProvider,
        Workspace,
        WorkspacePart,
    )
    from rxloop.providers import Preset, Price, Retry, fallback, hedge, limited, openai_chat
    from rxloop.requests import (
        IterationEnd,
        ModelRequest,
        Operator,
        RunContext,
        RunRequest,
        Signal,
        Strategy,
        ToolDefinition,
        ToolRequest,
    )
    from rxloop.result import Result
    from rxloop.run import Run
    from rxloop.settings import Limits, ModelSettings
    from rxloop.state import RunState, fold
    from rxloop.stream.stream import Stream
    from rxloop.thinking.flow import STRATEGIES, Stage, StageManager, StrategyDefinition
    from rxloop.thinking.graph import ThoughtGraph
    from rxloop.thinking.sessions import (
        MemorySessionStore,
        SequentialThought,
        Session,
        ThinkingSessions,
        ThoughtInput,
        ThoughtResult,
    )
    from rxloop.tools import Thoughts, ToolResult, tool
    from rxloop.tools.request_input import request_input
    from rxloop.tools.sequential_thinking import sequential_thinking
    from rxloop.tools.strategic_thinking import strategic_thinking
    from rxloop.totals import CompressionTotals

# Imported when they are first asked for: a program, the command above all, need not wait for what it does not use.
_MODULES = {
    "rxloop.agent": "Agent",
    "rxloop.context": (
        "ChainedCompressor CompositeWorkspace FolderWorkspace Scratchpad SemanticCompressor "
        "SlidingWindowCompressor TextWorkspace ThinkingResult TokenBudgetCompressor TokenEstimator"
    ),
    "rxloop.differences": "RunCost RunDiff RunSide diff",
    "rxloop.envelope": "UnknownEvent",
    "rxloop.errors": (
        "AttemptError AuthenticationError BadRequest BranchRefused ConfigurationError ConflictError "
        "ContentFiltered ContextBusy ContextLengthExceeded EventLogError GrammarError InvalidInput "
        "InvalidOutput InvalidThought LimitReached NoAnswers NotFinished Overloaded PermissionDenied "
        "PipelineError PlanRefused ProviderConnectionError ProviderError ProviderProtocolError "
        "ProviderTimeout RateLimited RecordingMismatch RunCancelled RunError RxloopError ServerError "
        "SessionConflict SessionError SessionFull SlowReader StageChoiceRequired StageRefused StrategyError "
        "ToolError UnknownModel UnknownRun UnknownSession"
    ),
    "rxloop.eventlog": "MemoryEventLog",
    "rxloop.eventlog.sessions": "SqliteSessionStore",
    "rxloop.eventlog.sqlite": "SqliteEventLog",
    "rxloop.events": (
        "AnyEvent ArtifactUpdateEvent AuthRequiredEvent CheckpointEvent ContentCompleteEvent "
        "ContentDeltaEvent ContextCompressedEvent CustomEvent Event GapEvent InputReceivedEvent "
        "InputRequiredEvent LLMCallEvent LLMFailedEvent MessageAddedEvent PendingInput SessionLink StageEvent "
        "StatusUpdateEvent SubtaskEvent TaskEvent ThinkingFailedEvent ThoughtDeltaEvent ThoughtStreamEvent "
        "ToolCallDeltaEvent ToolCompleteEvent ToolProgressEvent ToolStartEvent UsageEvent external from_json "
        "protocol_schema"
    ),
    "rxloop.messages": "ErrorInfo FilePart ImagePart Message Part TextPart ToolCall Usage",
    "rxloop.options": "ForkOptions RunOptions",
    "rxloop.playback": "RecordedStream Replay follow replay",
    "rxloop.protocols": (
        "Budget Clock Compressor EventLog Provider RunRecord SessionChange SessionRecord SessionStore "
        "TokenCounter Tool ToolProvider Workspace WorkspacePart"
    ),
    "rxloop.providers": "Preset Price Retry fallback hedge limited openai_chat",
    "rxloop.requests": (
        "IterationEnd ModelRequest Operator RunContext RunRequest Signal Strategy ToolDefinition ToolRequest"
    ),
    "rxloop.result": "Result",
    "rxloop.run": "Run",
    "rxloop.settings": "Limits ModelSettings",
    "rxloop.state": "RunState fold",
    "rxloop.stream.stream": "Stream",
    "rxloop.thinking.flow": "STRATEGIES Stage StageManager StrategyDefinition",
    "rxloop.thinking.graph": "ThoughtGraph",
    "rxloop.thinking.sessions": (
        "MemorySessionStore SequentialThought Session ThinkingSessions ThoughtInput ThoughtResult"
    ),
    "rxloop.tools": "Thoughts ToolResult tool",
    "rxloop.tools.request_input": "request_input",
    "rxloop.tools.sequential_thinking": "sequential_thinking",
    "rxloop.tools.strategic_thinking": "strategic_thinking",
    "rxloop.totals": "CompressionTotals",
}
_LATER = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "op":
        value = import_module("rxloop.operators")
    elif name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


__all__ = [
    "STRATEGIES",
    "Agent",
    "AnyEvent",
    "ArtifactUpdateEvent",
    "AttemptError",
    "AuthRequiredEvent",
    "AuthenticationError",
    "BadRequest",
    "BranchRefused",
    "Budget",
    "ChainedCompressor",
    "CheckpointEvent",
    "Clock",
    "CompositeWorkspace",
    "CompressionTotals",
    "Compressor",
    "ConfigurationError",
    "ConflictError",
    "ContentCompleteEvent",
    "ContentDeltaEvent",
    "ContentFiltered",
    "ContextBusy",
    "ContextCompressedEvent",
    "ContextLengthExceeded",
    "CustomEvent",
    "ErrorInfo",
    "Event",
    "EventLog",
    "EventLogError",
    "FilePart",
    "FolderWorkspace",
    "ForkOptions",
    "GapEvent",
    "GrammarError",
    "ImagePart",
    "InputReceivedEvent",
    "InputRequiredEvent",
    "InvalidInput",
    "InvalidOutput",
    "InvalidThought",
    "IterationEnd",
    "LLMCallEvent",
    "LLMFailedEvent",
    "LimitReached",
    "Limits",
    "MemoryEventLog",
    "MemorySessionStore",
    "Message",
    "MessageAddedEvent",
    "ModelRequest",
    "ModelSettings",
    "NoAnswers",
    "NotFinished",
    "Operator",
    "Overloaded",
    "Part",
    "PendingInput",
    "PermissionDenied",
    "PipelineError",
    "PlanRefused",
    "Preset",
    "Price",
    "Provider",
    "ProviderConnectionError",
    "ProviderError",
    "ProviderProtocolError",
    "ProviderTimeout",
    "RateLimited",
    "RecordedStream",
    "RecordingMismatch",
    "Replay",
    "Result",
    "Retry",
    "Run",
    "RunCancelled",
    "RunContext",
    "RunCost",
    "RunDiff",
    "RunError",
    "RunOptions",
    "RunRecord",
    "RunRequest",
    "RunSide",
    "RunState",
    "RxloopError",
    "Scratchpad",
    "SemanticCompressor",
    "SequentialThought",
    "ServerError",
    "Session",
    "SessionChange",
    "SessionConflict",
    "SessionError",
    "SessionFull",
    "SessionLink",
    "SessionRecord",
    "SessionStore",
    "Signal",
    "SlidingWindowCompressor",
    "SlowReader",
    "SqliteEventLog",
    "SqliteSessionStore",
    "Stage",
    "StageChoiceRequired",
    "StageEvent",
    "StageManager",
    "StageRefused",
    "StatusUpdateEvent",
    "Strategy",
    "StrategyDefinition",
    "StrategyError",
    "Stream",
    "SubtaskEvent",
    "TaskEvent",
    "TextPart",
    "TextWorkspace",
    "ThinkingFailedEvent",
    "ThinkingResult",
    "ThinkingSessions",
    "ThoughtDeltaEvent",
    "ThoughtGraph",
    "ThoughtInput",
    "ThoughtResult",
    "ThoughtStreamEvent",
    "Thoughts",
    "TokenBudgetCompressor",
    "TokenCounter",
    "TokenEstimator",
    "Tool",
    "ToolCall",
    "ToolCallDeltaEvent",
    "ToolCompleteEvent",
    "ToolDefinition",
    "ToolError",
    "ToolProgressEvent",
    "ToolProvider",
    "ToolRequest",
    "ToolResult",
    "ToolStartEvent",
    "UnknownEvent",
    "UnknownModel",
    "UnknownRun",
    "UnknownSession",
    "Usage",
    "UsageEvent",
    "Workspace",
    "WorkspacePart",
    "__version__",
    "diff",
    "external",
    "fallback",
    "fold",
    "follow",
    "from_json",
    "hedge",
    "limited",
    "op",
    "openai_chat",
    "protocol_schema",
    "replay",
    "request_input",
    "sequential_thinking",
    "strategic_thinking",
    "tool",
]
