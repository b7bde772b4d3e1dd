"""Refused images are omitted, and the model is called once more."""
# P33

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import reactivex
from reactivex import Observable

from rxloop import Agent, ImagePart, MemoryEventLog, Message, RunError, SqliteEventLog, TextPart, tool
from rxloop.errors import BadRequest, ContextLengthExceeded, MediaRefused, RateLimited
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol import media
from rxloop.protocol.events import Event, LLMFailedEvent, LLMNoticeEvent
from rxloop.protocol.media import resolve
from rxloop.providers import (
    HTTPModel,
    Retry,
    anthropic_messages,
    fallback,
    google_gemini,
    hedge,
    limited,
    openai_chat,
    openai_responses,
)
from rxloop.providers.error_messages import find_fingerprints
from rxloop.providers.error_responses import error_from_response
from rxloop.providers.failures import Endpoint
from rxloop.state.history import History
from rxloop.state.refused_media import RefusedMedia
from rxloop.testing import ScriptedModel
from support.http_server import Reply, Server, delta, sse, start_server, text_reply
from support.runs import copy_first_events
from support.strategy_cases import CASES, Case, add, turn_by_step
from support.vendors import vendor_answers

WHERE = Endpoint("acme:m", "https://e.org/v1")
OLD, NEW = (ImagePart(data=b"\x89PNG\r\n\x1a\n" + bytes([n]) * 30, media_type="image/png") for n in (1, 2))
OLD64, NEW64 = (b64encode(part.data or b"").decode() for part in (OLD, NEW))
COULD_NOT = "Could not process image"


def make_refusal(message: str, status: int = 400, **fields: Any) -> Reply:
    body = orjson.dumps({"error": {"message": message, "type": "invalid_request_error", **fields}})
    return Reply([body], status=status, content_type="application/json")


def make_answer(text: str = "A cat.") -> Reply:
    message = {"role": "assistant", "content": text}
    body = orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return Reply([body], content_type="application/json")


MODELS: list[HTTPModel] = []


@pytest.fixture(autouse=True)
async def closed_models() -> AsyncIterator[None]:
    yield
    while MODELS:
        await MODELS.pop().aclose()


def make_model(server: Server, make: Any = openai_chat, name: str = "m") -> HTTPModel:
    model = make(name, base_url=server.base_url, api_key="k", stream=False, retry=Retry(attempts=1))
    MODELS.append(model)
    return model


def make_prompt(*parts: ImagePart) -> Message:
    return Message.user([TextPart(text="What is this?"), *parts])


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        # Anthropic, also on Bedrock
        (400, "invalid_request_error", "Could not process image"),
        (
            400,
            None,
            "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum",
        ),
        (
            400,
            None,
            "messages.2.content.0.image.source.base64.data: Image does not match the media type",
        ),
        (400, None, "messages.0.content.0.image.source.base64.data: invalid base64 data"),
        (
            400,
            None,
            "messages.1.content.5.image: image dimensions exceed max allowed size",
        ),
        (400, None, "Unable to download the file. Please verify the URL and try again. image"),
        (400, None, "The PDF specified was not valid."),
        (400, None, "too many images and documents: 101 + 0 > 100"),
        # OpenAI
        (400, "invalid_image_format", "You uploaded an unsupported image. Please make sure your image is valid."),
        (400, "sanitizer_server_error", "You uploaded an unsupported image. Make sure it is below 20 MB in size."),
        (400, "image_parse_error", "You uploaded an unsupported image."),
        (400, "invalid_image_url", "Failed to download image from https://e.org/a.png. Image URL is invalid."),
        (400, "invalid_base64", "Invalid base64 image_url."),
        (400, "image_content_policy_violation", "The image was flagged."),
        (
            400,
            "content_policy_violation",
            "Your input image may be refused by our safety system.",
        ),
        (400, "image_too_large", "Too big."),
        (400, None, "Invalid content type. image_url is only supported by certain models."),
        # Google
        (400, "INVALID_ARGUMENT", "Unable to process input image. Please retry or report."),
        (400, "INVALID_ARGUMENT", "Provided image is not valid."),
        (400, "INVALID_ARGUMENT", "Unsupported MIME type: image/bmp"),
        (400, "INVALID_ARGUMENT", "Cannot fetch content from the provided URL. URL_ROBOTED-ROBOTED_DENIED"),
        (400, "INVALID_ARGUMENT", "The document has no pages. Invalid PDF"),
        # gateways and servers of open models
        (404, None, "No endpoints found that support image input"),
        (400, None, "Too many images provided. This model supports up to 5 images"),
        (400, None, "At most 1 image(s) may be provided in one request."),
        (400, None, "Qwen3-8B is not a multimodal model"),
        (400, None, "Failed to deserialize the JSON body: messages[0]: unknown variant `image_url`, expected `text`"),
        (500, None, "image input is not supported - hint: you may need to provide the mmproj"),
        (400, None, "'url' field must be a base64 encoded image."),
        (422, None, "Fetching image failed with HTTP status 403 Forbidden."),
        (413, "image_too_large", "The image is too large."),
        (
            400,
            None,
            "messages.0.content.1.image.source.base64.media_type: Input should be 'image/jpeg' or 'image/png'",
        ),
        (400, None, "messages.0.content.1.document.source.base64.data: The PDF specified is password protected."),
        (400, None, "A maximum of 100 PDF pages may be provided."),
        (400, None, "You included 25 images but the limit is 20"),
        (400, None, "The image data you provided does not represent a valid image."),
        (400, None, "Error while downloading https://e.org/a.png. Upstream status code: 404."),
        (400, None, "Expected a base64-encoded data URL, but got empty base64-encoded bytes."),
        (400, None, "Failed to extract text from file"),
        (400, None, "The document contains 0 pages."),
        (400, None, "Image url should start with http or data"),
        (400, None, "Download multimodal file timed out"),
        (400, None, "Vision is not supported by this model"),
        (400, None, "this model is missing data required for image input"),
        (404, None, "No endpoints found that support input file"),
        (400, None, "messages[0].content must be a string"),
    ],
)
def test_refusal_of_media_is_recognised(status: int, code: str | None, message: str) -> None:
    body = orjson.dumps({"error": {"message": message, "code": code}})
    assert type(error_from_response(status, {}, body, WHERE)) is MediaRefused


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "prompt is too long: 210000 tokens > 200000 maximum", ContextLengthExceeded),
        (400, "This model's maximum context length is 8192 tokens, images included", ContextLengthExceeded),
        (429, "Rate limit reached for images", RateLimited),
        (400, "Invalid schema for function 'draw'", BadRequest),
        (400, "Invalid schema for function 'find_image': image must be a string", BadRequest),
        (400, "Invalid 'tools[0].function.name': not a valid image name", BadRequest),
        (400, "Unknown parameter: 'audio'.", BadRequest),
        (400, "messages.1: tool_use ids were found without tool_result blocks", BadRequest),
    ],
)
def test_other_refusal_is_not_a_refusal_of_media(status: int, message: str, kind: type[Exception]) -> None:
    assert type(error_from_response(status, {}, orjson.dumps({"error": {"message": message}}), WHERE)) is kind


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (
            {"messages": [{"content": [{}, {"type": "image", "source": {"data": NEW64}}]}]},
            "messages.0.content.1.image.source",
        ),
        (
            {"messages": [{"content": [{"content": [{"source": {"data": OLD64}}, {"source": {"data": NEW64}}]}]}]},
            "messages.0.content.0.tool_result.content.1.image.source.base64.data",
        ),
        (
            {"messages": [{"content": [{"image_url": {"url": f"data:image/png;base64,{NEW64}"}}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"input": [{"content": [{"image_url": f"data:image/png;base64,{NEW64}"}]}]}, "input[0].content[0].image_url"),
        (
            {"contents": [{"parts": [{}, {"inlineData": {"data": NEW64}}]}]},
            "contents[0].parts[1].inline_data",
        ),
    ],
)
def test_part_is_found_by_its_path_in_the_request(body: Any, path: str) -> None:
    assert find_fingerprints(orjson.dumps(body), path) == (resolve(NEW).fingerprint,)


async def test_call_is_repeated_without_the_refused_image(server: Server) -> None:
    server.answer(make_refusal(COULD_NOT), make_answer())
    run = Agent(make_model(server)).run(make_prompt(NEW))
    events: list[Event] = [event async for event in run.events]
    assert (await run).content == "A cat."
    first, second = [orjson.dumps(each.body).decode() for each in server.requests]
    assert NEW64 in first
    assert NEW64 not in second
    assert f"[image omitted: the vendor refused it: {COULD_NOT}" in second
    [notice] = [event for event in events if isinstance(event, LLMNoticeEvent)]
    assert NEW.placeholder in notice.message
    assert COULD_NOT in notice.message
    [failed] = [event for event in events if isinstance(event, LLMFailedEvent)]
    assert (failed.error.code, len(failed.refused)) == ("media_refused", 1)


async def test_first_reason_is_reported_when_the_second_request_fails(server: Server) -> None:
    server.answer(make_refusal(COULD_NOT), make_refusal("The image is still invalid"))
    with pytest.raises(RunError, match=COULD_NOT) as raised:
        await Agent(make_model(server)).run([make_prompt(OLD), Message.assistant("Yes."), make_prompt(NEW)])
    assert raised.value.code == "media_refused"
    assert len(server.requests) == 2


async def test_refusal_without_media_fails_at_once(server: Server) -> None:
    server.answer(make_refusal(COULD_NOT))
    with pytest.raises(RunError, match=COULD_NOT):
        await Agent(make_model(server)).run("hi")
    assert len(server.requests) == 1


HISTORY = [make_prompt(OLD), Message.assistant("A dog."), make_prompt(NEW)]


@pytest.mark.parametrize(
    ("message", "fields", "kept"),
    [
        (COULD_NOT, {}, {OLD64}),
        ("messages.0.content.1.image.source.base64: invalid image", {}, {NEW64}),
        ("Invalid image.", {"param": "messages[0].content[1].image_url"}, {NEW64}),
        ("Invalid value.", {"param": "messages[0].content[1].image_url.url"}, {NEW64}),
        ("Too many images provided.", {}, {NEW64}),
        ("No endpoints found that support image input", {}, set[str]()),
    ],
)
async def test_only_the_refused_image_is_omitted(
    server: Server, message: str, fields: dict[str, Any], kept: set[str]
) -> None:
    server.answer(make_refusal(message, **fields), make_answer())
    await Agent(make_model(server)).run(HISTORY)
    second = orjson.dumps(server.requests[1].body).decode()
    assert {each for each in (OLD64, NEW64) if each in second} == kept


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_later_requests_do_not_contain_the_image(server: Server, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log.db"
    log: Any = MemoryEventLog() if kind == "memory" else SqliteEventLog(path)
    server.answer(make_refusal(COULD_NOT), make_answer())
    await Agent(make_model(server), log=log).run(make_prompt(NEW), context_id="c")
    for _ in range(2):
        if kind == "sqlite":
            # As in another process.
            await log.aclose()
            log = SqliteEventLog(path)
        await Agent(make_model(server), log=log).run("And now?", context_id="c")
        last = orjson.dumps(server.requests[-1].body).decode()
        assert NEW64 not in last
        assert "[image omitted: the vendor refused it" in last
    assert len(server.requests) == 4
    await log.aclose()


async def test_image_of_a_tool_is_omitted(server: Server) -> None:
    @tool
    def look() -> list[str | ImagePart]:
        """Look."""
        return ["Seen:", NEW]

    call = {"id": "a", "name": "look", "input": {}, "type": "tool_use"}

    def claude(*blocks: dict[str, Any], reason: str) -> Reply:
        body = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": reason}
        return Reply([orjson.dumps(body)], content_type="application/json")

    failing = "messages.2.content.0.tool_result.content.1.image.source.base64: Could not process image"
    done = claude({"type": "text", "text": "A cat."}, reason="end_turn")
    server.answer(claude(call, reason="tool_use"), make_refusal(failing), done)
    model = make_model(server, anthropic_messages, "claude-sonnet-4-5")
    assert (await Agent(model, tools=[look]).run(make_prompt(OLD))).content == "A cat."
    second, third = [orjson.dumps(each.body).decode() for each in server.requests[1:]]
    assert NEW64 in second
    assert NEW64 not in third
    assert OLD64 in third


@pytest.mark.parametrize("make", [openai_responses, google_gemini, anthropic_messages])
async def test_call_is_repeated_for_each_vendor(server: Server, make: Any) -> None:
    server.answer(make_refusal(COULD_NOT), make_refusal("stop here", status=401))
    model = make_model(server, make)
    with pytest.raises(RunError):
        await Agent(model).run(make_prompt(NEW))
    assert [NEW64 in orjson.dumps(each.body).decode() for each in server.requests] == [True, False]


IMAGE_ERROR: dict[str, Any] = {"type": "invalid_request_error", "message": COULD_NOT}
STREAMED_ERRORS: list[tuple[str, list[Any]]] = [
    ("chat", [{"error": {"message": COULD_NOT, "code": 400}}]),
    ("chat", [{"object": "error", "message": COULD_NOT, "type": "BadRequestError", "code": 400}]),
    ("chat", [delta(content="I"), {"error": {"message": "Provider returned error", "metadata": {"raw": COULD_NOT}}}]),
    ("messages", [{"type": "error", "error": IMAGE_ERROR}]),
    ("messages", [vendor_answers.start(), {"type": "error", "error": {**IMAGE_ERROR, "type": "api_error"}}]),
    ("gemini", [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "Unable to process input image."}}]),
    ("responses", [{"type": "error", "code": "invalid_image", "message": COULD_NOT, "param": None}]),
    ("responses", [{"type": "response.failed", "response": {"error": {"code": "image_too_large", "message": "x"}}}]),
    ("responses", [{"type": "response.failed", "response": {"error": {"code": "invalid_base64_image"}}}]),
]


@pytest.mark.parametrize(("api", "events"), STREAMED_ERRORS)
async def test_call_is_repeated_when_the_stream_reports_the_refusal(
    server: Server, api: str, events: list[Any]
) -> None:
    done = vendor_answers.ModelAnswer("A cat.", finish=vendor_answers.NORMAL[api])
    server.answer(Reply(sse(*events, done=False)), vendor_answers.reply(api, done, stream=True))
    model = vendor_answers.model(api, server, stream=True)
    MODELS.append(model)
    run = Agent(model).run(make_prompt(NEW))
    kinds = [event.kind async for event in run.events]
    result = await run
    assert result.content == "A cat."
    assert [message.text for message in result.messages] == ["What is this?", "A cat."]
    assert kinds.count("llm-notice") == 1
    assert [NEW64 in each.raw.decode() for each in server.requests] == [True, False]


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (404, "The model gpt-image-1 is not supported", "unknown_model"),
        (403, "You cannot open this document", "permission"),
        (400, "Invalid image id in the text", "bad_request"),
    ],
)
async def test_request_without_media_fails_with_the_usual_error(
    server: Server, status: int, message: str, code: str
) -> None:
    server.answer(make_refusal(message, status))
    with pytest.raises(RunError) as raised:
        await Agent(make_model(server)).run("hi")
    assert raised.value.code == code


async def test_server_error_is_retried_when_the_request_has_no_media(server: Server) -> None:
    server.answer(make_refusal("Internal error: failed to load the container image", 500), make_answer("ok"))
    model = openai_chat("m", base_url=server.base_url, api_key="k", stream=False, retry=Retry(attempts=2, first=0.01))
    MODELS.append(model)
    assert (await Agent(model).run("hi")).content == "ok"


class RefusesImages:
    """Model that refuses requests with images."""

    name = "refuses-images"

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self.refused: list[str] = []

    def call(self, request: ModelRequest) -> Observable[Event]:
        if any(message.media for message in request.messages):
            self.refused.append(request.step)
            return reactivex.throw(MediaRefused(f"m answered 400 Bad Request: {COULD_NOT}", status=400))
        return self._model.call(request)

    async def aclose(self) -> None:
        await self._model.aclose()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_strategy_continues_without_the_image(case: Case) -> None:
    model = RefusesImages(ScriptedModel(*[turn_by_step(case.turns)] * 40))
    log = MemoryEventLog()
    agent = Agent(model, tools=[add], strategy=case.strategy(), log=log)
    assert (await agent.run(make_prompt(NEW), context_id="c")).output == case.answer
    assert len(model.refused) == 1
    assert (await agent.run("And now?", context_id="c")).output == case.answer
    assert len(model.refused) == 1


async def test_resumed_run_does_not_send_the_refused_image(server: Server) -> None:
    log = MemoryEventLog()
    server.answer(make_refusal(COULD_NOT), make_answer())
    whole = await Agent(make_model(server), log=log).run(make_prompt(NEW), context_id="c")
    events = await log.read(whole.task_id)
    refused = next(n for n, event in enumerate(events, 1) if isinstance(event, LLMFailedEvent))
    for held in (refused, refused + 1):
        crashed = await copy_first_events(log, whole.task_id, held)
        server.requests.clear()
        server.answer(make_answer("A dog."))
        assert (await Agent(make_model(server), log=crashed).resume(whole.task_id)).content == "A dog."
        assert [NEW64 in each.raw.decode() for each in server.requests] == [False]


async def test_fork_does_not_send_the_refused_image(server: Server) -> None:
    log = MemoryEventLog()
    agent = Agent(make_model(server), log=log)
    server.answer(make_refusal(COULD_NOT), make_answer())
    whole = await agent.run(make_prompt(NEW), context_id="c")
    at = len(await log.read(whole.task_id)) - 1
    assert (await agent.fork(whole.task_id, at=at, prompt="so?")).content == "A cat."
    assert NEW64 not in server.requests[-1].raw.decode()


@pytest.mark.parametrize("combine", [fallback, lambda a, b: hedge(a, b, after=10)], ids=["fallback", "hedge"])
async def test_fallback_model_gets_the_image_first(server: Server, combine: Any) -> None:
    async with start_server() as second:
        server.answer(make_refusal("No endpoints found that support image input", 404))
        second.answer(make_answer("From the second."))
        run = Agent(combine(make_model(server), make_model(second))).run(make_prompt(NEW))
        assert (await run).content == "From the second."
        assert [NEW64 in each.raw.decode() for each in (*server.requests, *second.requests)] == [True, True]


@pytest.mark.parametrize("other", [make_refusal(COULD_NOT), make_refusal("wrong key", 401), make_refusal("Bad schema")])
@pytest.mark.parametrize("combine", [fallback, lambda a, b: hedge(a, b, after=10)], ids=["fallback", "hedge"])
async def test_image_is_omitted_when_all_models_refuse_it(server: Server, combine: Any, other: Reply) -> None:
    async with start_server() as second:
        server.answer(make_refusal(COULD_NOT), make_answer())
        second.answer(other)
        model = combine(make_model(server), make_model(second))
        log = MemoryEventLog()
        assert (await Agent(model, log=log).run(make_prompt(NEW), context_id="c")).content == "A cat."
        await Agent(model, log=log).run("And now?", context_id="c")
        assert [NEW64 in each.raw.decode() for each in server.requests] == [True, False, False]
        assert len(second.requests) == 1


async def test_limited_model_is_called_again(server: Server) -> None:
    server.answer(make_refusal(COULD_NOT), text_reply("A cat."))
    model = limited(openai_chat("m", base_url=server.base_url, api_key="k", retry=Retry(attempts=1)), concurrent=1)
    assert (await Agent(model).run(make_prompt(NEW))).content == "A cat."
    assert len(server.requests) == 2
    await model.aclose()


def test_parts_of_a_history_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    usual = media.resolve
    monkeypatch.setattr(media, "resolve", lambda part: hashed.append(id(part)) or usual(part))
    images = [ImagePart(data=b"\x89PNG\r\n\x1a\n%d" % n, media_type="image/png") for n in range(1_100)]
    refused = RefusedMedia({usual(images[5]).fingerprint: "broken"})
    history = History([make_prompt(image) for image in images])
    for messages in (list(history), history, history):
        omitted = refused.omit(messages)
        assert [message.media for message in omitted] == [[image] if n != 5 else [] for n, image in enumerate(images)]
    longer = history.append(Message.user("so?"), make_prompt(images[5]))
    view = refused.omit(longer)
    assert len(view) == 1_102
    assert view[-1].text.startswith("What is this?\n[image omitted")
    assert list(view[:-2]) == list(omitted)
    assert len(hashed) == len(images)


def test_history_without_refused_parts_is_unchanged() -> None:
    refused = RefusedMedia({"0" * 32: "broken"})
    history = History([make_prompt(OLD)])
    assert refused.omit(history) is history
    longer = history.append(make_prompt(NEW))
    assert refused.omit(longer) is longer
