"""Remedies for unknown names, including the names that other agent frameworks use for the same purpose.

This module is only imported to create an error message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_READ_EVENTS = "`async for event in agent.run(...)`"

_REMEDIES: Mapping[str, Mapping[str, str]] = {
    "option": {
        "limits=Limits(iterations=...)": (
            "max_turns max_iterations max_iters max_steps max_loops recursion_limit request_limit iterations"
        ),
        "limits=Limits(seconds=...)": "timeout max_seconds max_execution_time time_limit",
        "limits=Limits(tokens=...)": "usage_limits usage_limit token_limit budget",
        "settings=": "model_settings model_config generation_config reasoning",
        "settings=ModelSettings(...)": (
            "temperature top_p max_tokens seed stop stop_sequences tool_choice parallel_tool_calls reasoning_effort"
        ),
        "an operator, as in Agent(..., loop=op.standard(before_tools=[...]))": (
            "middleware middlewares hooks callbacks callback guardrails input_guardrails output_guardrails "
            "interrupt_before interrupt_after interrupt_on pre_model_hook post_model_hook history_processors"
        ),
        _READ_EVENTS: "stream streaming stream_mode on_event event_stream_handler",
        "agent.run(...).events.subscribe(print)": "verbose debug",
    },
    "Agent": {
        "instructions=": "system_prompt system system_message prompt preamble backstory role instruction",
        "output_type=": "result_type response_format response_model output_schema result_schema output_format",
        "tools=": "functions toolsets builtin_tools plugins mcp_servers function_tools",
        "tools=[other.as_tool()]": "handoffs subagents sub_agents agents managed_agents",
        "log=SqliteEventLog('runs.db')": (
            "checkpointer memory store storage db database session persistence session_service history"
        ),
        "deps_type= with the class, and agent.run(..., deps=...) with the object": "deps dependencies context_schema",
        "output_retries=, or a model with retry=Retry(...)": "retries max_retries",
        "model": "llm model_name provider",
    },
    "Agent.run": {
        "a list as the prompt, such as agent.run([*result.messages, 'question'])": (
            "message_history messages history chat_history conversation_history"
        ),
        "context_id=": "thread_id session_id session conversation_id conversation chat_id config",
        "deps=": "context dependencies state",
        "owner=": "user user_id tenant tenant_id",
        "task_id=": "run_id idempotency_key",
        "inputs={input_id: answer}": "answers answer resume deferred_tool_results",
        "concurrency=": "max_concurrency max_workers workers batch_size parallel",
    },
    "tool": {
        "name=": "name_override tool_name",
        "description=": "description_override docstring doc",
        "annotations of the function, which become the schema": "parameters schema args_schema input_schema",
        "approve=True": "requires_approval needs_approval require_confirmation",
        "`raise ToolError(...)` in the function, after which the model can call the tool again": (
            "retries max_retries failure_error_function handle_tool_error"
        ),
        "enabled=": "is_enabled prepare",
    },
    "Limits": {
        "iterations=": "max_turns max_iterations max_steps recursion_limit request_limit requests",
        "seconds=": "timeout max_seconds time_limit duration",
        "tokens=": "max_tokens total_tokens_limit token_limit budget",
        "the view op.cost()": "cost max_cost usd",
    },
    "ModelSettings": {
        "max_tokens=": "max_output_tokens max_completion_tokens num_predict",
        "stop=[...]": "stop_sequences stop_words",
        "thinking_budget=": "budget_tokens thinking_tokens",
        "reasoning_effort=": "effort reasoning thinking",
        "openai_chat(..., timeout=Timeouts(...))": "timeout",
        "extra_body={...}": "response_format logit_bias top_k frequency_penalty presence_penalty n user metadata",
        "headers={...}": "extra_headers",
    },
    "model": {
        "settings=ModelSettings(...) of the agent": (
            "temperature top_p max_tokens seed stop tool_choice parallel_tool_calls reasoning_effort"
        ),
        "base_url=": "url endpoint api_base host",
        "retry=Retry(attempts=...)": "max_retries retries",
        "api_key=": "key token",
    },
    "rxloop.operators": {
        "`import reactivex.operators as rx`, and rx.filter, rx.map and so on": (
            "filter map scan tap do_action debounce throttle merge flat_map take skip reduce buffer timeout retry catch"
        ),
    },
    "Message": {"content=": "text message value parts", "Message.user(...) or Message.assistant(...)": "*"},
    "Agent.": {
        f"`await agent.run(...)`, or {_READ_EVENTS}": (
            "run_stream stream astream run_streamed run_stream_events stream_events astream_events iter stream_chat "
            "invoke ainvoke arun achat chat call acall execute kickoff kickoff_async generate predict query ask "
            "run_async send_message"
        ),
        "agent.map([...])": "batch abatch run_batch map_async",
        "@rxloop.tool, and Agent(..., tools=[function])": (
            "tool tool_plain add_tool register_tool add_tools bind_tools toolset"
        ),
        "Agent(..., instructions=function)": "system_prompt set_system_prompt",
        "Agent(..., output_type=...)": "output_validator result_validator with_structured_output",
        "agent.as_tool()": "to_tool handoff",
        "another Agent(...), or agent.override(model=..., tools=[...])": (
            "with_model with_tools clone copy update configure bind"
        ),
        "agent.definition, and another Agent(...) to change it": (
            "tools tool_names instructions output_type deps_type strategy loop thoughts artifacts toolsets"
        ),
        "`rxloop serve`": "serve to_ag_ui to_a2a to_cli to_web",
    },
    "Run.": {
        "`async for event in run`": "stream_events astream iter_events stream_responses",
        "run.text()": "stream_text stream_output text_stream stream_chunks",
        "`(await run).output`": "final_output data answer value response get_output",
        "`(await run).messages`": "all_messages new_messages history to_input_list",
        "task_id": "id run_id trace_id",
        "context_id": "thread_id session_id conversation_id",
        "run.cancel() or `await run.aclose()`": "stop abort close terminate kill",
        "`await run`": "wait join get done then",
        "run.events.subscribe(...)": "subscribe on add_done_callback on_event",
        "run.pipe(...) with a view or an operator of reactivex": "map filter do_action flat_map take",
    },
    "Result.": {
        "output": "data final_output answer value response result parsed_output get_output get_data",
        "content": "text message choices final_message",
        "messages": "all_messages new_messages history to_input_list new_items all_messages_json",
        "task_id": "id run_id trace_id",
        "context_id": "thread_id session_id conversation_id",
        "pending": "interruptions interrupts requires_action",
        "run.pipe(op.cost())": "cost total_cost price",
        "run.pipe(op.tool_calls())": "tool_calls tool_results steps",
        "the run: `run = agent.run(...)`, then `result = await run`": (
            "events stream cancel send pipe sse subscribe start begin release aclose artifacts"
        ),
    },
    "RemoteRun.": {
        "`await agent.get_run(task_id).execute()`": "result wait run start resume output",
        "follow(log, task_id)": "events stream follow pipe text subscribe",
        "`await log.get_record(task_id)`": "state status pending record",
    },
    "RunContext.": {
        "ctx.deps": "context dependencies deps_type",
        "`await ctx.ask(...)`": "interrupt elicit confirm input request_input approve",
        "ctx.emit(CustomEvent(...))": "send stream writer write send_event",
        "ctx.progress(message)": "report_progress info debug warning",
        "ctx.task_id": "run_id id",
        "ctx.context_id": "thread_id session_id conversation_id",
        "ctx.call.id": "tool_call_id",
        "ctx.call.name": "tool_name",
        "ctx.state.messages": "messages history message_history",
    },
    "ToolRequest.": {
        "request.call.arguments": "arguments args input tool_args parameters",
        "request.call.name": "name tool_name tool",
        "request.call.id": "id tool_call_id",
        "request.refuse(reason)": "deny reject block cancel",
        "`yield request`": "approve allow accept execute",
    },
    "Runtime.": {
        "`await runtime.start(name, prompt)`": "run submit invoke enqueue create_run",
        "runtime.follow(task_id)": "stream events subscribe",
    },
    "rxloop": {
        "rxloop.tool": "function_tool StructuredTool FunctionTool tool_plain",
        "rxloop.Agent": "create_agent create_react_agent AgentExecutor LlmAgent ReActAgent Assistant",
        "agent.run(...)": "Runner AgentRunner run run_sync Crew Task",
        "Message.user(...)": "UserMessage HumanMessage UserPromptPart",
        "Message.system(...), or Agent(..., instructions=...)": "SystemMessage SystemPromptPart SystemPrompt",
        "Message.assistant(...)": "AIMessage AssistantMessage ModelResponse",
        "Message.tool(call_id, content)": "ToolMessage ToolReturnPart",
        "rxloop.ToolError": "ModelRetry ToolException",
        "rxloop.Limits": "UsageLimits RunLimits",
        "rxloop.ModelSettings": "RunConfig GenerationConfig Settings",
        "rxloop.open_log('runs.db')": (
            "MemorySaver InMemorySaver SqliteSaver AsyncSqliteSaver PostgresSaver SQLiteSession Session Memory"
        ),
        "`await ctx.ask(...)` in a tool": "interrupt Command DeferredToolRequests ApprovalRequired",
        "an operator or a strategy, see docs/operators.md": (
            "StateGraph Graph Workflow AgentHooks RunHooks Middleware Handoff handoff guardrail input_guardrail"
        ),
        "`from rxloop.testing import ...`": "call turn virtual_time assert_marbles marbles recorded",
        "`from rxloop.testing import ScriptedModel`": "ScriptedModel TestModel FunctionModel FakeModel",
        "`from rxloop.tools.mcp import mcp`": "mcp MCPServer MCPServerStdio MCPServerStreamableHTTP MCPToolset",
        "a model string, as in Agent('openai:gpt-5')": (
            "OpenAI ChatOpenAI OpenAIModel OpenAIChatModel Anthropic ChatAnthropic AnthropicModel init_chat_model"
        ),
    },
}
"""Remedies, and the unknown names they are for. The key is a callable, or a class followed by a dot for attributes.
`*` stands for positional arguments."""

ARGUMENTS: Mapping[str, str] = {
    "Agent": "model deps_type output_type",
    "Agent.as_tool": "name deps",
    "Agent.fork": "task_id at deps",
    "Agent.get_run(...).execute": "deps",
    "Agent.map": "items prompt deps",
    "Agent.resume": "task_id deps",
    "Agent.run": "prompt deps",
    "Agent.run_sync": "prompt deps",
    "Agent.submit": "prompt",
    "Runtime.start": "agent prompt key priority at",
}
"""Arguments that callables with options declare themselves."""


def find_nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None. Ignores case, `-`, `_` and prefixes such as `functions.`."""
    from difflib import get_close_matches

    normalized = {_normalize_name(each): each for each in names}
    matches = get_close_matches(_normalize_name(name), normalized, n=1)
    return normalized[matches[0]] if matches else None


def _normalize_name(name: str) -> str:
    for mark in ".:/":
        name = name.rpartition(mark)[2] or name
    return name.casefold().replace("-", "").replace("_", "")


def explain_name(places: Iterable[str], name: str, names: Iterable[str]) -> str:
    """Return what to write instead of an unknown name, or an empty string.

    Args:
        places: Keys of the table of remedies, in order of precedence.
        name: Unknown name.
        names: Existing names.
    """
    for place in places:
        for remedy, foreign in _REMEDIES.get(place, {}).items():
            if name in foreign.split():
                return f"use {remedy}"
    nearest = find_nearest(name, names)
    return "" if nearest is None else f"did you mean {nearest!r}?"


def explain_argument(callee: str, places: Iterable[str], name: str, options: Iterable[str]) -> str:
    """Return what to write instead of an unknown argument.

    Args:
        callee: Name of the callable, for its `ARGUMENTS`.
        places: Keys of the table of remedies, as for `explain_name`.
        name: Unknown argument.
        options: Names of its other arguments.
    """
    names = [*ARGUMENTS.get(callee, "").split(), *options]
    return explain_name(places, name, names) or f"expected {', '.join(names)}"
