"""What can be set for a model call and for a run, as plain values."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Wire

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Phase = Literal["analyze", "research", "design"]
PHASES: dict[Phase, int] = {"analyze": 1, "research": 15, "design": 20}
"""Iterations of each phase of work."""
ToolChoice = Literal["auto", "none", "required"] | str


CachePoint = Literal["tools", "system", "newest"] | int


class PromptCache(Wire):
    """Where a vendor that caches on demand, as Anthropic does, keeps the beginning of a request for the next one.

    Elsewhere it changes nothing: OpenAI and Gemini cache by themselves.
    """

    points: list[CachePoint] = Field(default_factory=lambda: list[CachePoint](("tools", "system", "newest")))
    """Up to where it is kept: the end of the tools, that of the system prompt, the newest message; or a message by its
    place among the messages, from the end where it is negative. None at all keeps nothing."""
    ttl: Literal["5m", "1h"] = "5m"
    """How long it is kept without being used."""


class ModelSettings(Wire):
    """Settings of a model call; None leaves a setting to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    tool_choice: ToolChoice | None = None
    """`auto`, `none`, `required`, or the name of the one tool to call.

    `required` and the name of a tool apply to the first request of a run, and `auto` to its later requests; see
    `tool_choice_scope`."""
    tool_choice_scope: Literal["first", "every"] | None = None
    """Requests that a forced `tool_choice` applies to.

    `first`, the default, is the first request of a run, and of each branch of a strategy. With `every`, the model is
    forced in each request, so that the run ends only by a limit, an answer tool or a cancel."""
    parallel_tool_calls: bool | None = None
    seed: int | None = None
    stop: list[str] | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_budget: int | None = None
    """The most tokens of reasoning, where a vendor counts them; elsewhere `reasoning_effort` says how much."""
    service_tier: str | None = None
    """What the vendor calls the class of service, such as `flex` or `priority`."""
    prompt_cache: PromptCache | None = None
    server_tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Tools that the vendor itself carries out, such as its web search, each as the vendor defines it."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields that go into the request's JSON as they are."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Headers that go with the request."""

    def after_first_request(self, answer_tools: Collection[str]) -> "ModelSettings":
        """Return the settings of a later request, in which a forced `tool_choice` is replaced by `auto`.

        Args:
            answer_tools: The tools by which the model answers. A choice that lets the model call one of them remains
                forced, because this call ends the run.
        """
        choice = self.tool_choice
        if choice in (None, "auto", "none") or self.tool_choice_scope == "every":
            return self
        if answer_tools and (choice == "required" or choice in answer_tools):
            return self
        return self.model_copy(update={"tool_choice": "auto"})

    def over(self, other: "ModelSettings | None") -> "ModelSettings":
        """These settings where they are set, and those of `other` elsewhere; dicts are merged."""
        if other is None:
            return self
        mine = {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}
        merged = {name: {**getattr(other, name), **mine.get(name, {})} for name in ("extra_body", "headers")}
        return other.model_copy(update={**mine, **merged})


class Limits(Wire):
    """Where a run ends even without an answer; None is no limit."""

    iterations: int | None = Field(default=20, ge=1)
    """Model calls of the main line; of all its lines, if one of `rxloop.strategies` makes the run."""
    tool_failures: int | None = Field(default=3, ge=1)
    """Consecutive iterations in which every tool failed."""
    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of all model calls, as the provider counts them."""
    seconds: float | None = Field(default=None, gt=0)
    """Time from the start of an attempt."""
    attempts: int | None = Field(default=20, ge=1)
    """Attempts in a row that a crash, a release or a failure that may pass has ended; one that paused for an answer, or
    was cancelled, begins the count anew. So a run that kills its worker ends, however often it is taken up."""
    preparation: float | None = Field(default=60.0, gt=0)
    """Seconds that each part of what comes before a model call may take: the instructions, a family of tools that is
    asked for them, the functions of `enabled=`, an async workspace. A compressor has a `timeout` of its own."""
    depth: int | None = Field(default=5, ge=0)
    """How deep agents may be nested in each other below this run; 0 lets it call no agent."""
    width: int | None = Field(default=20, ge=1)
    """How many runs of nested agents may go on side by side below this run, at any depth."""
    conclude: bool = False
    """Send the last iteration with `tool_choice: none`, so that the run ends with an answer."""

    @classmethod
    def phase(cls, name: Phase, **limits: Any) -> "Limits":
        """Make the limits of a phase of work, which always comes to an answer.

        Args:
            name: `analyze` is one step, `research` 15, and `design` 20; the last step has to be the answer.
            **limits: Other limits beside it.

        Raises:
            ConfigurationError: There is no such phase.
        """
        if name not in PHASES:
            raise ConfigurationError(f"there is no phase {name!r}: the phases are {', '.join(PHASES)}")
        return cls.model_validate({"iterations": PHASES[name], "conclude": True, **limits})

    def over(self, other: "Limits | None") -> "Limits":
        """These limits where they are set, be it to None, and those of `other` elsewhere."""
        if other is None:
            return self
        return other.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
