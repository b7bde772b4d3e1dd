"""The tool by which a model gives an answer that has a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rxloop.errors import ToolError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext

FINAL_ANSWER = "final_answer"


class FinalAnswer:
    """Takes the answer of a run as the arguments of a call, and ends the run with it."""

    timeout: float | None = None
    idempotent = True
    approve = False

    def __init__(self, parameters: dict[str, Any], check: Callable[[dict[str, Any]], str]) -> None:
        """Make the tool.

        Args:
            parameters: JSON Schema of the arguments.
            check: Gives the answer that the arguments are, as JSON; raises ValueError with a text for the model.
        """
        self.definition = ToolDefinition(
            FINAL_ANSWER,
            "Gives your final answer, and ends the task. Call it once, alone, when you have all that the answer needs.",
            parameters,
            answer=True,
        )
        self._check = check

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Always: a run may be answered at any time."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        """Take the answer.

        Raises:
            ToolError: It does not fit.
        """
        try:
            return self._check(arguments)
        except ValueError as error:
            raise ToolError(f"Your answer does not fit: {error}\nCall {FINAL_ANSWER} again.") from error
