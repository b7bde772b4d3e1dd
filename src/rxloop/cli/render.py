"""Human-readable event descriptions for the terminal."""

from __future__ import annotations

from rich.text import Text

from rxloop.cli.options import ThoughtLevel
from rxloop.errors import ContextLengthExceeded
from rxloop.protocol.events import (
    ArtifactUpdateEvent,
    AuthRequiredEvent,
    CheckpointEvent,
    ContentCompleteEvent,
    ContextCompressedEvent,
    CustomEvent,
    Event,
    GapEvent,
    GoalsUpdatedEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    MemoryForgottenEvent,
    MemoryNotedEvent,
    MemoryRecalledEvent,
    MessageAddedEvent,
    PendingInput,
    ServerToolEvent,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThinkingNotedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ToolsUnavailableEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.parts import add_placeholders
from rxloop.recorded.transcript import WIDTH, format_call, to_short_json
from rxloop.support.text import to_one_line, to_visible
from rxloop.thinking.graph.formats import label
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


def format_count(number: int, noun: str) -> str:
    """Format a number with its singular or plural noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe(event: Event, thoughts: ThoughtLevel) -> Text | None:
    """Describe an event for observers. Returns None for internal events and plain text."""
    text = _describe_thought(event, thoughts) if isinstance(event, ThoughtStreamEvent) else _describe_exchange(event)
    if text is not None and event.agent_path:
        return Text.assemble((f"{' > '.join(map(to_one_line, event.agent_path))} ", "dim"), text)
    return text


def describe_stored(event: Event, thoughts: ThoughtLevel) -> Text | None:
    """Describe an event, including internal events. Returns None for hidden thoughts."""
    if (text := describe(event, thoughts)) is not None:
        return text
    if isinstance(event, ThoughtStreamEvent):
        return None
    return _describe_bookkeeping(event)


def format_question(pending: PendingInput) -> Text:
    """Format a pending question."""
    text = Text.assemble(("? ", "bold yellow"), _mark_continuation(pending.prompt))
    if pending.options is not None:
        text.append(f" ({', '.join(map(to_short_json, pending.options))})")
    elif pending.input_kind == "confirmation":
        text.append(" (yes or no)")
    elif pending.url is not None:
        text.append(f" {_mark_continuation(pending.url)}")
    return text


def _mark_continuation(text: str) -> str:
    """Prefix continuation lines, so that they cannot be confused with output of the command itself."""
    return "\n  | ".join(to_visible(text).split("\n"))


def _describe_exchange(event: Event) -> Text | None:
    match event:
        case ToolStartEvent() if event.name != THINK_ALOUD:
            return Text.assemble(("→ ", "cyan"), (format_call(event.call), "cyan"))
        case ToolProgressEvent():
            share = f" {event.fraction:.0%}" if event.fraction is not None else ""
            return Text(f"  … {to_one_line(event.name)}: {to_one_line(event.message, WIDTH)}{share}", "dim")
        case ToolCompleteEvent() if event.name != THINK_ALOUD or not event.success:
            mark, style = ("← ", "green") if event.success else ("✗ ", "red")
            content = to_one_line(event.content, WIDTH)
            name, duration = (to_one_line(event.name), style), (_format_duration(event), "dim")
            return Text.assemble((mark, style), name, f" {content}", duration)
        case InputRequiredEvent():
            return format_question(event.input)
        case InputReceivedEvent():
            return Text.assemble(("! ", "yellow"), to_one_line(to_short_json(event.value), WIDTH))
        case MessageAddedEvent():
            text = Message(role=event.role, content=event.content).text
            return Text.assemble((f"+ {event.role} ({to_one_line(event.cause)}): ", "yellow"), _mark_continuation(text))
        case LLMFailedEvent() if event.retry_in is not None or event.error.code == ContextLengthExceeded.code:
            # The final failure is included in the run's last event.
            again = f"; retrying in {event.retry_in:.1f} s" if event.retry_in is not None else ""
            return Text.assemble(("! ", "yellow"), to_one_line(event.error.message, WIDTH), (again, "dim"))
        case AuthRequiredEvent():
            where = f" at {to_one_line(event.url, 2_000)}" if event.url else ""
            return Text.assemble(("? ", "bold yellow"), f"{to_one_line(event.provider)} requires a sign-in{where}")
        case _:
            return _describe_progress(event)


def _describe_progress(event: Event) -> Text | None:
    match event:
        case StageEvent():
            refused = "" if event.accepted else f" refused: {to_one_line(event.reason, WIDTH)}"
            return Text(f"~ {to_one_line(event.strategy)}: {to_one_line(event.to_stage)}{refused}", "blue")
        case ContextCompressedEvent():
            return Text(f"~ compressed: {event.tokens_before:,} to {event.tokens_after:,} tokens", "blue")
        case ThinkingFailedEvent():
            return Text.assemble(("! ", "yellow"), f"not compressed: {to_one_line(event.reason, WIDTH)}")
        case ToolsUnavailableEvent():
            return Text.assemble(
                ("! ", "yellow"), f"no tools from {to_one_line(event.toolset)}: {to_one_line(event.reason, WIDTH)}"
            )
        case MemoryNotedEvent():
            return Text(f"~ remembered: {to_one_line(event.text, WIDTH)}", "blue")
        case ThinkingNotedEvent():
            return Text(f"~ note: {to_one_line(event.note, WIDTH)}", "blue")
        case GoalsUpdatedEvent():
            return Text(f"~ goals: {to_one_line(event.describe(), WIDTH)}", "blue")
        case MemoryRecalledEvent():
            return Text(f"~ recalled {event.describe()}", "blue")
        case MemoryForgottenEvent():
            return Text("~ forgot notes", "blue")
        case SubtaskEvent():
            state = "started" if event.state == "working" else event.state
            return Text(f"~ {to_one_line(event.agent_name)} {state}", "blue")
        case ServerToolEvent():
            mark = "…" if event.phase == "start" else "=" if event.success else "failed"
            return Text(f"~ {to_one_line(event.name)} {mark}", "cyan")
        case LLMNoticeEvent():
            return Text.assemble(("! ", "yellow"), to_one_line(event.message, WIDTH))
        case CustomEvent():
            return Text(f"~ {to_one_line(event.name)} {to_one_line(to_short_json(event.data), WIDTH)}", "blue")
        case ArtifactUpdateEvent():
            part = f"part {event.index}" if event.url is None else to_one_line(event.url, WIDTH)
            return Text(f"~ file {to_one_line(event.name or event.artifact_id)}, {part}", "blue")
        case GapEvent():
            count = format_count(event.count, "missing event") if event.count else "missing events"
            return Text(f"! {count} ({event.reason})", "yellow")
        case _:
            return None


def _describe_bookkeeping(event: Event) -> Text:
    match event:
        case TaskEvent():
            text = event.messages[-1].text if event.messages else ""
            fork = f" (fork of {to_one_line(event.fork_of)} at {event.fork_seq})" if event.fork_of else ""
            return Text.assemble((f"> {text}", "bold"), (fork, "dim"))
        case StatusUpdateEvent():
            return describe_end(event) if event.final else Text(f"{event.state}{' again' * event.resumed}", "dim")
        case LLMCallEvent():
            size = f"{format_count(event.message_count, 'message')}, {format_count(event.tool_count, 'tool')}"
            return Text(f"model {to_one_line(event.model, WIDTH)}, {size}", "dim")
        case ContentCompleteEvent():
            # Thoughts have separate events.
            requests = (THINK_ALOUD if call.name == THINK_ALOUD else format_call(call) for call in event.tool_calls)
            calls = ", ".join(requests)
            text = Text(add_placeholders(event.content.strip(), event.files))
            return text or Text(f"requests {calls}" if calls else f"({to_one_line(event.finish_reason)})", "dim")
        case UsageEvent():
            return Text(f"{event.input_tokens:,} tokens in, {event.output_tokens:,} out", "dim")
        case CheckpointEvent():
            return Text(f"checkpoint{f' at {event.durable_seq}' if event.durable_seq else ''}", "dim")
        case LLMFailedEvent():
            return Text(f"{event.kind} ({to_one_line(event.error.code)})", "dim")
        case ToolStartEvent() | ToolCompleteEvent():
            return Text(f"{event.kind} {to_one_line(event.name)}", "dim")
        case _:
            text = event.describe()
            return Text(to_one_line(f"{event.kind}: {text}" if text else event.kind, WIDTH), "dim")


def describe_end(event: StatusUpdateEvent) -> Text:
    """Describe the final state."""
    match event.state:
        case "completed":
            reason = event.finish_reason
            suffix = f", truncated ({to_one_line(reason)})" if reason not in (None, "stop") else ""
            return Text.assemble((f"completed{suffix}", "green"))
        case "canceled":
            return Text("cancelled", "yellow")
        case "input-required" | "auth-required":
            missing = format_count(len(event.pending), "answer") if event.pending else "a sign-in"
            return Text(f"waiting for {missing}", "yellow")
        case _:
            code = event.error.code if event.error else event.reason
            message = f": {_mark_continuation(event.error.message)}" if event.error else ""
            state = "not recorded" if event.state == "working" else "failed"
            return Text.assemble((state, "bold red"), f" ({to_one_line(code or 'error')}){message}")


def _describe_thought(event: ThoughtStreamEvent, thoughts: ThoughtLevel) -> Text | None:
    if thoughts is ThoughtLevel.none:
        return None
    if thoughts is ThoughtLevel.brief:
        return Text(f"· {label(event, 100)}", "magenta")
    related_to = f" <- {to_one_line(event.related_to)}" if event.related_to else ""
    sure = f" ({event.confidence:.2g})" if event.confidence is not None else ""
    text = Text.assemble((f"· {event.thought_type} {to_one_line(event.thought_id)}{related_to}{sure}: ", "magenta"))
    text.append(event.content.strip(), "magenta")
    for other in event.alternatives:
        text.append(f"\n    or: {other}", "magenta dim")
    return text


def _format_duration(event: ToolCompleteEvent) -> str:
    return f"  {event.duration:.2f} s" if event.duration >= 0.005 else ""
