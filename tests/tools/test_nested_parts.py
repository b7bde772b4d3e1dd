"""Images and files inside tool results, which are sent as parts and named in the text."""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rxloop import Agent, FilePart, ImagePart, Message, TextPart, ToolCompleteEvent, ToolResult, tool
from rxloop.errors import ToolError
from rxloop.testing import ScriptedModel, call
from rxloop.tools.result import encode_result, encode_with_parts

T = TypeVar("T")
CHART = ImagePart(data=b"\x89PNG" * 1_000, media_type="image/png")
REPORT = FilePart(data=b"%PDF", media_type="application/pdf", filename="report.pdf")
LINKED = ImagePart(url="https://example.org/cat.png")
PLACEHOLDER, FILE = "[image/png, 4.0 kB]", "[report.pdf, application/pdf, 4 bytes]"
ABOUT = {"type": "image", "mediaType": "image/png", "size": 4_000}


class Figure(BaseModel):
    title: str
    chart: ImagePart


class Page(BaseModel):
    figures: list[Figure]
    files: dict[str, FilePart | ImagePart] = {}


class Box(BaseModel, Generic[T]):
    item: T


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    chart: ImagePart = Field(serialization_alias="theChart")


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Computed(BaseModel):
    chart: ImagePart

    @computed_field
    @property
    def kind(self) -> str | None:
        return self.chart.media_type


class Serialized(BaseModel):
    chart: ImagePart

    @field_serializer("chart")
    def only_url(self, chart: ImagePart) -> str | None:
        return chart.url


class Silent(BaseModel):
    title: str
    chart: ImagePart = Field(exclude=True)


class Pair(NamedTuple):
    title: str
    chart: ImagePart


class Typed(TypedDict):
    chart: ImagePart


class Hashed(ImagePart):
    """Hashable part."""

    def __hash__(self) -> int:
        return hash(self.data)


@dataclass
class Plain:
    chart: ImagePart


@dataclass(frozen=True, slots=True)
class Frozen:
    chart: ImagePart


@pydantic_dataclass
class Validated:
    chart: ImagePart


AT_CHART = {"chart": PLACEHOLDER}
CASES: dict[str, tuple[Any, Any]] = {
    "dict": ({"chart": CHART}, AT_CHART),
    "nested dict": ({"a": {"b": {"chart": CHART}}}, {"a": {"b": AT_CHART}}),
    "list of dicts": ([{"chart": CHART, "n": 1}, {"n": 2}], [{**AT_CHART, "n": 1}, {"n": 2}]),
    "list in a dict": ({"charts": [CHART]}, {"charts": [PLACEHOLDER]}),
    "tuple in a dict": ({"charts": (1, CHART)}, {"charts": [1, PLACEHOLDER]}),
    "list of lists": ([[1, [CHART]]], [[1, [PLACEHOLDER]]]),
    "ordered dict": (OrderedDict(chart=CHART), AT_CHART),
    "default dict": (defaultdict(list, charts=[CHART]), {"charts": [PLACEHOLDER]}),
    "deque": (deque([CHART]), [PLACEHOLDER]),
    "named tuple in a list": ([Pair("a", CHART)], [["a", PLACEHOLDER]]),
    "named tuple in a dict": ({"pair": Pair("a", CHART)}, {"pair": ["a", PLACEHOLDER]}),
    "typed dict": (Typed(chart=CHART), AT_CHART),
    "dataclass": (Plain(CHART), AT_CHART),
    "frozen dataclass": (Frozen(CHART), AT_CHART),
    "pydantic dataclass": (Validated(CHART), AT_CHART),
    "dataclasses in a dict": ({"all": [Plain(CHART)]}, {"all": [AT_CHART]}),
    "model": (Figure(title="a", chart=CHART), {"title": "a", **AT_CHART}),
    "nested model": (
        Page(figures=[Figure(title="a", chart=CHART)]),
        {"figures": [{"title": "a", **AT_CHART}], "files": {}},
    ),
    "generic model": (Box[ImagePart](item=CHART), {"item": PLACEHOLDER}),
    "generic list": (Box[list[Figure]](item=[Figure(title="a", chart=CHART)]), {"item": [{"title": "a", **AT_CHART}]}),
    "generic any": (Box[Any](item={"x": CHART}), {"item": {"x": PLACEHOLDER}}),
    "root model": (RootModel[dict[str, ImagePart]]({"chart": CHART}), AT_CHART),
    "alias": (Aliased(chart=CHART), {"theChart": PLACEHOLDER}),
    "extra": (Extra.model_validate({"chart": CHART}), AT_CHART),
    "computed": (Computed(chart=CHART), {**AT_CHART, "kind": "image/png"}),
    "serializer": (Serialized(chart=CHART), AT_CHART),
}


@pytest.mark.parametrize(("value", "text"), CASES.values(), ids=CASES)
async def test_parts_at_any_depth_are_sent_as_parts_and_named_in_the_text(value: Any, text: Any) -> None:  # P27
    @tool
    async def draw() -> Any:
        return value

    model = ScriptedModel(call("draw"), "Drawn.")
    run = Agent(model, tools=[draw]).run("Draw.")
    [event] = [event async for event in run.events if isinstance(event, ToolCompleteEvent)]
    assert event.success is True
    assert orjson.loads(event.content) == text
    assert event.parts == [CHART]
    assert model.requests[1].messages[-1].media == [CHART]
    assert b64encode(b"\x89PNG" * 3).decode() not in event.content + repr(event.result)
    assert "rxloop-part" not in event.to_json().decode()


def test_data_describes_a_nested_part() -> None:  # P27
    assert encode_result({"chart": CHART}) == ({"chart": ABOUT}, f'{{"chart":"{PLACEHOLDER}"}}')
    assert encode_result(Figure(title="a", chart=CHART))[0] == {"title": "a", "chart": ABOUT}
    assert encode_result({"a": LINKED})[0] == {"a": {"type": "image", "url": LINKED.url}}


DATA_URL = f"data:image/png;base64,{b64encode(CHART.data or b'').decode()}"


@pytest.mark.parametrize("url", [DATA_URL, f" {DATA_URL}", DATA_URL.replace("data:", "DATA:")])
def test_data_url_is_described_like_bytes(url: str) -> None:  # P27
    part = ImagePart(url=url)
    for value, data in ((part, ABOUT), ({"a": [part]}, {"a": [ABOUT]}), ([part, "x"], [ABOUT, "x"])):
        encoded = encode_with_parts(value)
        assert encoded.data == data
        assert list(encoded.parts) == [part]
        assert "iVBOR" not in encoded.text


def test_unreadable_data_url_is_omitted_from_the_data() -> None:  # P27
    part = FilePart(url="data:application/pdf;base64,!!!", filename="a.pdf")
    assert encode_with_parts([part]).data == [{"type": "file", "filename": "a.pdf"}]


class Charts(Enum):
    FIRST = CHART


@pytest.mark.parametrize("value", [Charts.FIRST, {"a": Charts.FIRST}, [Charts.FIRST], {"a": [Charts.FIRST]}])
def test_part_that_is_the_value_of_an_enum_is_found(value: Any) -> None:  # P27
    encoded = encode_with_parts(value)
    assert list(encoded.parts) == [CHART]
    assert PLACEHOLDER in encoded.text
    assert len(encoded.text) < 100


def test_parts_are_in_the_order_of_the_value_with_repetitions() -> None:  # P27
    page = Page(figures=[Figure(title="a", chart=CHART), Figure(title="b", chart=LINKED)], files={"r": REPORT})
    encoded = encode_with_parts({"pages": [page], "again": CHART})
    assert list(encoded.parts) == [CHART, LINKED, REPORT, CHART]
    assert FILE in encoded.text
    assert "[image at https://example.org/cat.png]" in encoded.text


def test_parts_and_nested_parts_of_a_list_are_found() -> None:  # P27
    encoded = encode_with_parts(["See:", CHART, {"report": REPORT}, [LINKED]])
    assert list(encoded.parts) == [CHART, REPORT, LINKED]
    assert encoded.text == f'See:\n{PLACEHOLDER}\n{{"report":"{FILE}"}}\n[image at https://example.org/cat.png]'


def test_part_that_its_model_excludes_is_named_after_the_text() -> None:  # P27
    encoded = encode_with_parts(Silent(title="a", chart=CHART))
    assert encoded.text == f'{{"title":"a"}}\n{PLACEHOLDER}'
    assert list(encoded.parts) == [CHART]


def test_parts_in_tool_results_and_messages_are_found() -> None:  # P27
    encoded = encode_with_parts(ToolResult({"a": CHART}, "One chart.", parts=[REPORT]))
    assert encoded.text == f"One chart.\n{PLACEHOLDER}\n{FILE}"
    assert list(encoded.parts) == [CHART, REPORT]
    wrapped = encode_with_parts({"results": [ToolResult(1, "x", parts=[CHART])]})
    assert list(wrapped.parts) == [CHART]
    message = encode_with_parts({"said": Message.user([TextPart(text="Look:"), CHART])})
    assert list(message.parts) == [CHART]
    assert PLACEHOLDER in message.text


async def test_parts_from_generators_and_iterators_are_found() -> None:  # P27
    @tool
    async def draw() -> Any:
        yield "begun"
        yield {"chart": CHART}

    @tool
    def list_all() -> Iterator[Any]:
        return iter([{"chart": CHART}, {"chart": LINKED}])

    model = ScriptedModel([call("draw"), call("list_all")], "Drawn.")
    await Agent(model, tools=[draw, list_all]).run("Draw.")
    first, second = model.requests[1].messages[-2:]
    assert first.text == f'{{"chart":"{PLACEHOLDER}"}}'
    assert first.media == [CHART]
    assert second.media == [CHART, LINKED]


def test_parts_in_sets_are_found() -> None:  # P27
    part = Hashed(data=CHART.data, media_type="image/png")
    for value in ({part}, frozenset({part})):
        encoded = encode_with_parts({"charts": value})
        assert encoded.text == f'{{"charts":["{PLACEHOLDER}"]}}'
        assert list(encoded.parts) == [part]


def test_value_of_the_tool_is_unchanged_and_bytes_are_not_parts() -> None:  # P27
    figure = Figure(title="a", chart=CHART)
    plain = Plain(CHART)
    encode_result({"all": [figure, plain]})
    assert figure.chart == CHART
    assert plain.chart == CHART
    encoded = encode_with_parts({"data": b"bytes", "base64": b64encode(b"PNG")})
    assert encoded.data == {"data": "bytes", "base64": "UE5H"}
    assert encoded.parts == ()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"all": [CHART] * 101}, "more than 100 images and files"),
        ({"a": ImagePart(data=b"x" * 21_000_000, media_type="image/png")}, "larger than 20 MB"),
    ],
)
async def test_too_many_or_too_large_parts_fail_the_call(value: Any, reason: str) -> None:  # P27
    @tool
    async def draw() -> Any:
        return value

    model = ScriptedModel(call("draw"), "No.")
    await Agent(model, tools=[draw]).run("Draw.")
    assert reason in model.requests[1].messages[-1].text
    assert not model.requests[1].messages[-1].media


def test_serializers_and_computed_fields_get_the_bytes() -> None:  # P27
    class Sized(BaseModel):
        chart: ImagePart

        @field_serializer("chart")
        def size(self, chart: ImagePart) -> int:
            return len(chart.data or b"")

    encoded = encode_with_parts(Sized(chart=CHART))
    assert encoded.data == {"chart": 4_000}
    assert list(encoded.parts) == [CHART]
    assert encoded.text == f'{{"chart":4000}}\n{PLACEHOLDER}'


async def test_failed_call_may_have_nested_parts_in_its_value() -> None:  # P6 P27
    @tool
    async def draw() -> Any:
        raise ToolError("no", value={"chart": CHART})

    model = ScriptedModel(call("draw"), "No.")
    await Agent(model, tools=[draw]).run("Draw.")
    message = model.requests[1].messages[-1]
    assert message.text == f'no\n{{"chart":"{PLACEHOLDER}"}}'
    assert message.media == [CHART]
