"""Model settings and run limits."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Wire

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Phase = Literal["analyze", "research", "design"]
PHASES: dict[Phase, int] = {"analyze": 1, "research": 15, "design": 20}
"""Maximum number of iterations per phase."""
ToolChoice = Literal["auto", "none", "required"] | str


CachePoint = Literal["tools", "system", "newest"] | int


class PromptCache(Wire):
    """Prompt cache settings.

    This only affects vendors that cache on demand, such as Anthropic. OpenAI and Gemini always cache.
    """

    points: list[CachePoint] = Field(default_factory=lambda: list[CachePoint](("tools", "system", "newest")))
    """Cache points: the end of the tools or system prompt, the newest message, or a message index. Negative indexes are
    supported. Set an empty list to disable caching."""
    ttl: Literal["5m", "1h"] = "5m"
    """Time after which unused cache entries expire."""


class ModelSettings(Wire):
    """Settings for model calls. With None, the provider's default is used."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    tool_choice: ToolChoice | None = None
    """`auto`, `none`, `required`, or the name of a tool that the model must call.

    `required` and the name of a tool apply to the first request of a run, and `auto` to its later requests; see
    `tool_choice_scope`."""
    tool_choice_scope: Literal["first", "every"] | None = None
    """Requests to which a forced `tool_choice` applies.

    `first`, the default, is the first request of a run and of each strategy branch. With `every`, the model is forced
    in each request, so the run only ends by a limit, an answer tool or a cancellation."""
    parallel_tool_calls: bool | None = None
    seed: int | None = None
    stop: list[str] | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_budget: int | None = None
    """Maximum number of reasoning tokens, for vendors that support it. For other vendors, use `reasoning_effort`."""
    service_tier: str | None = None
    """Vendor's service class, such as `flex` or `priority`."""
    prompt_cache: PromptCache | None = None
    server_tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Tools executed by the vendor, such as web search. Use the vendor's format."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Additional fields for the JSON body."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Additional HTTP headers."""

    def relax_tool_choice(self, answer_tools: Collection[str]) -> "ModelSettings":
        """Return settings for later requests, with a forced `tool_choice` replaced by `auto`.

        Args:
            answer_tools: Tools that return the answer of the run. If the model may call one of them, the choice remains
                forced, because this call ends the run.
        """
        choice = self.tool_choice
        if choice in (None, "auto", "none") or self.tool_choice_scope == "every":
            return self
        if answer_tools and (choice == "required" or choice in answer_tools):
            return self
        return self.model_copy(update={"tool_choice": "auto"})

    def merge_defaults(self, defaults: "ModelSettings | None") -> "ModelSettings":
        """Return these settings, with unset values taken from `defaults`. Dicts are merged."""
        if defaults is None:
            return self
        mine = {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}
        merged = {name: {**getattr(defaults, name), **mine.get(name, {})} for name in ("extra_body", "headers")}
        return defaults.model_copy(update={**mine, **merged})


class Limits(Wire):
    """Run limits. Set to None to disable a limit."""

    iterations: int | None = Field(default=20, ge=1)
    """Maximum number of model calls on all branches, including calls that operators repeat or multiply."""
    tool_failures: int | None = Field(default=3, ge=1)
    """Maximum number of consecutive iterations in which all tools failed."""
    tokens: int | None = Field(default=None, ge=1)
    """Maximum number of input and output tokens, as reported by the provider."""
    seconds: float | None = Field(default=None, gt=0)
    """Maximum duration of an attempt in seconds."""
    attempts: int | None = Field(default=20, ge=1)
    """Maximum number of consecutive attempts that a crash or a temporary failure ended before any progress, such as the
    result of a call. An attempt that pauses for an answer or is canceled resets the count. This ends runs that crash
    their worker."""
    preparation: float | None = Field(default=60.0, gt=0)
    """Time limit in seconds for each step before a model call: instructions, toolsets, `enabled=` functions, and async
    workspaces. Compressors have their own `timeout`."""
    depth: int | None = Field(default=5, ge=0)
    """Maximum nesting depth of agents below this run. With 0, the run must not call agents."""
    width: int | None = Field(default=20, ge=1)
    """Maximum number of concurrent nested runs at any depth below this run."""
    conclude: bool = False
    """True to set `tool_choice: none` in the last iteration, so that the run ends with an answer."""

    @classmethod
    def phase(cls, name: Phase, **limits: Any) -> "Limits":
        """Create limits for a phase of work. The last iteration must answer.

        Args:
            name: Name of the phase. `analyze` has one iteration, `research` 15, and `design` 20.
            **limits: Additional limits.

        Raises:
            ConfigurationError: The phase is unknown.
        """
        if name not in PHASES:
            raise ConfigurationError(f"name must be one of {', '.join(PHASES)}, got {name!r}")
        return cls.model_validate({"iterations": PHASES[name], "conclude": True, **limits})

    def merge_defaults(self, defaults: "Limits | None") -> "Limits":
        """Return these limits, with unset values taken from `defaults`. None counts as set."""
        if defaults is None:
            return self
        return defaults.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
