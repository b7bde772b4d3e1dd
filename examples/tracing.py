"""This example prints the OpenTelemetry spans of a run, as a tree with durations and tokens.

An editor asks a researcher, which is a nested agent with a tool. The example needs no key and no network. To send the
spans to a backend, replace the exporter with `OTLPSpanExporter` of `opentelemetry-exporter-otlp-proto-http`.
"""

from __future__ import annotations

import asyncio

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rxloop import Agent, Usage, op, tool
from rxloop.testing import ScriptedModel, call, turn


@tool
async def look_up(question: str) -> str:
    """Search an encyclopedia."""
    await asyncio.sleep(0.02)
    return f"{question} 1,101 m"


def make_editor() -> Agent[None, str]:
    """Create an agent that delegates questions to another agent."""
    found = turn("1,101 m", usage=Usage(input_tokens=42, output_tokens=4))
    researcher = Agent(
        ScriptedModel(call("look_up", question="Highest mountain?"), found), tools=[look_up], name="researcher"
    )
    answer = turn("The highest mountain has 1,101 m.", usage=Usage(input_tokens=30, output_tokens=9))
    model = ScriptedModel(call("researcher", prompt="How high?"), answer)
    return Agent(model, tools=[researcher.as_tool()], name="editor")


def format_spans(spans: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> list[str]:
    """Return a line for each span below a parent, in order of their starts."""
    lines: list[str] = []
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent is not None else None) == parent:
            attributes = span.attributes or {}
            tokens = attributes.get("gen_ai.usage.output_tokens")
            milliseconds = ((span.end_time or 0) - (span.start_time or 0)) // 1_000_000
            usage = f", {tokens} output tokens" if tokens is not None else ""
            lines.append(f"{'  ' * depth}{span.name} ({milliseconds} ms{usage})")
            context = span.get_span_context()
            lines += format_spans(spans, context.span_id if context is not None else None, depth + 1)
    return lines


async def main() -> list[str]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    run = make_editor().run("How high is the highest mountain?")
    run.pipe(op.spans(tracer_provider=provider)).subscribe()
    await run
    return format_spans(exporter.get_finished_spans())


if __name__ == "__main__":
    print("\n".join(asyncio.run(main())))
