"""Agent loop whose runs are ordered streams of typed events, produced by a pipeline of RxPY operators."""

from typing import TYPE_CHECKING

from rxloop import operators
from rxloop._lazy import import_later

op = operators
__all__: list[str]
import_later(__name__, "op")

# Public names, read by type checkers and `import_later`.
if TYPE_CHECKING:
    from rxloop._version import __version__ as __version__
    from rxloop.agents.agent import Agent as Agent
    from rxloop.agents.batch import Outcome as Outcome
    from rxloop.context.compressors import SemanticCompressor as SemanticCompressor
    from rxloop.context.compressors import SlidingWindowCompressor as SlidingWindowCompressor
    from rxloop.context.compressors import TokenBudgetCompressor as TokenBudgetCompressor
    from rxloop.context.workspaces import FolderWorkspace as FolderWorkspace
    from rxloop.context.workspaces import Scratchpad as Scratchpad
    from rxloop.errors import ConfigurationError as ConfigurationError
    from rxloop.errors import LimitReached as LimitReached
    from rxloop.errors import NotFinished as NotFinished
    from rxloop.errors import ProviderError as ProviderError
    from rxloop.errors import RunCancelled as RunCancelled
    from rxloop.errors import RunError as RunError
    from rxloop.errors import RxloopError as RxloopError
    from rxloop.errors import ToolError as ToolError
    from rxloop.pipeline.event_log import EventLog as EventLog
    from rxloop.pipeline.interfaces import Compressor as Compressor
    from rxloop.pipeline.interfaces import Provider as Provider
    from rxloop.pipeline.interfaces import Tool as Tool
    from rxloop.pipeline.interfaces import Toolset as Toolset
    from rxloop.pipeline.interfaces import Workspace as Workspace
    from rxloop.pipeline.records import RunRecord as RunRecord
    from rxloop.pipeline.requests import IterationEnd as IterationEnd
    from rxloop.pipeline.requests import ModelRequest as ModelRequest
    from rxloop.pipeline.requests import Operator as Operator
    from rxloop.pipeline.requests import RunRequest as RunRequest
    from rxloop.pipeline.requests import Signal as Signal
    from rxloop.pipeline.requests import Strategy as Strategy
    from rxloop.pipeline.requests import ToolDefinition as ToolDefinition
    from rxloop.pipeline.requests import ToolRequest as ToolRequest
    from rxloop.pipeline.run_context import RunContext as RunContext
    from rxloop.protocol.envelope import Event as Event
    from rxloop.protocol.events import AnyEvent as AnyEvent
    from rxloop.protocol.events import from_json as from_json
    from rxloop.protocol.messages import Citation as Citation
    from rxloop.protocol.messages import ErrorInfo as ErrorInfo
    from rxloop.protocol.messages import FilePart as FilePart
    from rxloop.protocol.messages import ImagePart as ImagePart
    from rxloop.protocol.messages import Message as Message
    from rxloop.protocol.messages import Part as Part
    from rxloop.protocol.messages import PendingInput as PendingInput
    from rxloop.protocol.messages import TextPart as TextPart
    from rxloop.protocol.messages import ToolCall as ToolCall
    from rxloop.protocol.messages import Usage as Usage
    from rxloop.protocol.run_events import ArtifactUpdateEvent as ArtifactUpdateEvent
    from rxloop.protocol.run_events import AuthRequiredEvent as AuthRequiredEvent
    from rxloop.protocol.run_events import CheckpointEvent as CheckpointEvent
    from rxloop.protocol.run_events import ContextCompressedEvent as ContextCompressedEvent
    from rxloop.protocol.run_events import CustomEvent as CustomEvent
    from rxloop.protocol.run_events import GapEvent as GapEvent
    from rxloop.protocol.run_events import InputReceivedEvent as InputReceivedEvent
    from rxloop.protocol.run_events import InputRequiredEvent as InputRequiredEvent
    from rxloop.protocol.run_events import MessageAddedEvent as MessageAddedEvent
    from rxloop.protocol.run_events import StageEvent as StageEvent
    from rxloop.protocol.run_events import StatusUpdateEvent as StatusUpdateEvent
    from rxloop.protocol.run_events import SubtaskEvent as SubtaskEvent
    from rxloop.protocol.run_events import TaskEvent as TaskEvent
    from rxloop.protocol.run_events import ToolsUnavailableEvent as ToolsUnavailableEvent
    from rxloop.protocol.settings import Limits as Limits
    from rxloop.protocol.settings import ModelSettings as ModelSettings
    from rxloop.protocol.settings import PromptCache as PromptCache
    from rxloop.protocol.step_events import ContentCompleteEvent as ContentCompleteEvent
    from rxloop.protocol.step_events import ContentDeltaEvent as ContentDeltaEvent
    from rxloop.protocol.step_events import LLMCallEvent as LLMCallEvent
    from rxloop.protocol.step_events import LLMFailedEvent as LLMFailedEvent
    from rxloop.protocol.step_events import LLMNoticeEvent as LLMNoticeEvent
    from rxloop.protocol.step_events import ServerToolEvent as ServerToolEvent
    from rxloop.protocol.step_events import ThoughtDeltaEvent as ThoughtDeltaEvent
    from rxloop.protocol.step_events import ThoughtStreamEvent as ThoughtStreamEvent
    from rxloop.protocol.step_events import ToolCallDeltaEvent as ToolCallDeltaEvent
    from rxloop.protocol.step_events import UsageEvent as UsageEvent
    from rxloop.protocol.tool_events import ThinkingFailedEvent as ThinkingFailedEvent
    from rxloop.protocol.tool_events import ToolCompleteEvent as ToolCompleteEvent
    from rxloop.protocol.tool_events import ToolProgressEvent as ToolProgressEvent
    from rxloop.protocol.tool_events import ToolStartEvent as ToolStartEvent
    from rxloop.protocol.tool_events import ToolVoidedEvent as ToolVoidedEvent
    from rxloop.providers.bounds import Timeouts as Timeouts
    from rxloop.providers.catalog import Price as Price
    from rxloop.providers.combinators.limited import limited as limited
    from rxloop.providers.combinators.selection import fallback as fallback
    from rxloop.providers.combinators.selection import hedge as hedge
    from rxloop.providers.factories import anthropic_messages as anthropic_messages
    from rxloop.providers.factories import google_gemini as google_gemini
    from rxloop.providers.factories import openai_chat as openai_chat
    from rxloop.providers.factories import openai_responses as openai_responses
    from rxloop.providers.retry import Retry as Retry
    from rxloop.recorded.diff import diff as diff
    from rxloop.recorded.follow import follow as follow
    from rxloop.recorded.replay import history as history
    from rxloop.recorded.replay import replay as replay
    from rxloop.run.handle import Run as Run
    from rxloop.run.result import Result as Result
    from rxloop.runtime.runtime import Runtime as Runtime
    from rxloop.state.run_state import RunState as RunState
    from rxloop.storage.log_urls import open_log as open_log
    from rxloop.storage.memory import MemoryEventLog as MemoryEventLog
    from rxloop.storage.postgres_log import PostgresEventLog as PostgresEventLog
    from rxloop.storage.sqlite_log import SqliteEventLog as SqliteEventLog
    from rxloop.strategies.strategic_thinking import strategic_thinking as strategic_thinking
    from rxloop.stream.readers import merge as merge
    from rxloop.stream.sources import emit as emit
    from rxloop.stream.stream import Stream as Stream
    from rxloop.thinking.graph import ThoughtGraph as ThoughtGraph
    from rxloop.tools.artifacts import artifact_tools as artifact_tools
    from rxloop.tools.client_tool import client_tool as client_tool
    from rxloop.tools.client_tool import request_input as request_input
    from rxloop.tools.function import tool as tool
    from rxloop.tools.result import ToolResult as ToolResult
    from rxloop.tools.sequential_thinking import sequential_thinking as sequential_thinking
    from rxloop.tools.skills import skills as skills
    from rxloop.tools.think_aloud import Thoughts as Thoughts
