"""Summarises what leaves the view of the model: the inside of `thinking_phase`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reactivex import Observable

from rxloop.context.compressing import Compressed, LastCut
from rxloop.context.summarising import ASK, Summary, ThinkingResult, question, reflect
from rxloop.errors import RxloopError
from rxloop.operators.loop._cutting import RequestCutter
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.pipeline.seams import Provider, TokenCounter
from rxloop.protocol.events import Event, ThinkingFailedEvent
from rxloop.protocol.messages import Message, Usage
from rxloop.protocol.settings import ModelSettings
from rxloop.stream.bridges import Push, emit, from_task
from rxloop.stream.one_answer import one_answer

_SHOWN = 24_000
"""Characters of what leaves the view that the summarising model reads."""
_TITLE = "[Summary of the messages that are left out here:]\n"


class SummarisingPhase:
    """Cuts requests, notes how far the run is, and has a model summarise what is left out."""

    def __init__(
        self, cutter: RequestCutter, model: Provider | str | None, note: bool, summary_tokens: int, timeout: float
    ) -> None:
        self._cutter = cutter
        self._model = model
        self._note = note
        self._summary_tokens = summary_tokens
        self._timeout = timeout

    def answer(self, request: ModelRequest) -> Observable[Signal]:
        """Answer a request with the one to send in its place."""
        if self._cutter.skips(request):
            return emit(request)
        result = reflect(request.ctx.state)
        if self._note and result.note():
            request = request.replace(tail=(*request.tail, Message.user(result.note())))
        counter = self._cutter.counter(request)
        compression = self._cutter.compression(request, counter)
        if compression.fits:
            return emit(self._request(request, compression.unchanged(), result, counter))

        async def cut(push: Push[Any]) -> None:
            made = await self._cutter.cut(request, compression)
            fields: dict[str, Any] = {}
            if made.cut and self._model is not None and not request.pressure:
                made, fields, failure = await self._summarised(self._model, request, made, counter)
                if failure is not None:
                    push(failure)
            for event in self._cutter.events(request, made, **fields):
                push(event)
            used = fields.get("thinking", Usage())
            push(self._request(request, made, replace(result, thinking_tokens=used), counter))

        return from_task(cut, request.ctx, name="rxloop-thinking", shielded=True)

    def _request(
        self, request: ModelRequest, found: Compressed, result: ThinkingResult, counter: TokenCounter
    ) -> ModelRequest:
        thinking = replace(result, summary=found.state.summary, compressed_history=found.messages)
        return self._cutter.smaller(request.replace(thinking=thinking), found.messages, counter)

    async def _summarised(
        self, model: Provider | str, request: ModelRequest, made: Compressed, counter: TokenCounter
    ) -> tuple[Compressed, dict[str, Any], Event | None]:
        """Put the summary of a model into the cut; give the fields of its event, and the failure if there is one."""
        used = Usage()
        name = model if isinstance(model, str) else type(model).__name__
        try:
            provider = request.ctx.host.provider(model)
            name = provider.name
            async with asyncio.timeout(self._timeout):
                text, used = await self._ask(provider, request, made)
            summary = Summary.read(text).text(lambda part: counter.count([Message.user(part)]) <= self._summary_tokens)
            made = _with_summary(made, summary, request, counter)
            return made, {"thinking_model": name, "thinking": used}, None
        except TimeoutError:
            reason = f"the thinking model {name} took more than {self._timeout:g} s"
        except (RxloopError, ValueError) as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        failure = ThinkingFailedEvent(
            reason=reason, tokens_before=made.tokens_before, step=request.step, branch=request.branch
        )
        return made, {"thinking_model": name, "thinking": used}, failure

    async def _ask(self, model: Provider, request: ModelRequest, made: Compressed) -> tuple[str, Usage]:
        """Have the model summarise the messages that leave the view; give its text and the tokens that it used."""
        history = request.messages
        before = self._cutter.last_cut(request) or LastCut()
        gone = set(made.state.left_out) - set(before.left_out)
        task = next((message.text for message in history if message.role == "user"), "")
        asked = question(task, before.summary, [history[place] for place in sorted(gone)], _SHOWN)
        summarise = ModelRequest(
            system=(Message.system(ASK),),
            messages=[Message.user(asked)],
            settings=ModelSettings(max_tokens=2 * self._summary_tokens + 200),
            step=f"{request.step}/thinking",
            branch=request.branch,
            ctx=request.ctx,
        )
        answer, used = await one_answer(model, summarise)
        return answer.content, used


def _with_summary(made: Compressed, text: str, request: ModelRequest, counter: TokenCounter) -> Compressed:
    """Put the model's summary before the facts of the cut.

    Raises:
        ValueError: The summary is empty, or takes no less than what it stands for.
    """
    if not text.strip():
        raise ValueError("the summary is empty")
    view = list(made.state.view)
    at = _place_of_summary(view)
    facts = made.state.summary
    message = Message.user(f"{_TITLE}{text}\n\n{facts}".rstrip())
    if at is not None:
        view[at] = message
    else:
        view.insert(_after_task(view, request.messages), message)
    state = replace(made.state, view=tuple(view))
    messages = state.messages(request.messages)
    after = counter.count(messages)
    if after >= made.tokens_before:
        raise ValueError(
            f"with the summary the messages take {after} tokens, no less than the {made.tokens_before} before"
        )
    return replace(made, state=state, messages=messages, tokens_after=after)


def _place_of_summary(view: Sequence[int | Message]) -> int | None:
    made = (at for at, item in enumerate(view) if isinstance(item, Message) and item.role not in ("tool", "assistant"))
    return next(made, None)


def _after_task(view: Sequence[int | Message], history: Sequence[Message]) -> int:
    users = (at for at, item in enumerate(view) if isinstance(item, int) and history[item].role == "user")
    return next(users, -1) + 1
