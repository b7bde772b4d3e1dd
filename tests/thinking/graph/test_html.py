from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import ContentCompleteEvent, ThoughtGraph, ThoughtStreamEvent, ToolCall
from rxloop.thinking.graph.html import HEIGHT, STEP, WIDTH, layout
from support.processes.services import CHROMIUM

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


class Page(HTMLParser):
    """Parsed elements and data of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def nodes(self) -> list[str | None]:
        return [attrs["id"] for tag, attrs in self.elements if tag == "g"]


def thought(id: str, content: str = "So.", related_to: str | None = None, **fields: Any) -> ThoughtStreamEvent:
    return ThoughtStreamEvent(thought_id=id, thought_type="planning", content=content, related_to=related_to, **fields)


def example() -> ThoughtGraph:
    calls = [ToolCall(id="w", name="weather", arguments={"city": "Oslo"})]
    return ThoughtGraph.of(
        [
            thought("plan", "First the weather."),
            ContentCompleteEvent(step="1", tool_calls=calls),
            thought("seen", "It is 20 C.", "w", confidence=0.9, alternatives=["It is 68 F."]),
            thought("then", "Warm enough.", "seen"),
        ]
    )


def test_page_contains_all_nodes_edges_and_data() -> None:
    page = Page(example().to_html("Is it warm?"))
    assert page.nodes() == ["n0", "n1", "n2", "n3"]
    assert [attrs["data-edge"] for _, attrs in page.elements if "data-edge" in attrs] == ["n1 n2", "n2 n3"]
    assert orjson.loads(page.data) == orjson.loads(example().to_json())


def test_page_is_deterministic_and_small() -> None:
    assert example().to_html() == example().to_html()
    assert len(example().to_html()) < 25_000


def test_page_loads_nothing_and_has_a_strict_policy() -> None:
    page = example().to_html()
    assert "http://" not in page
    assert "https://" not in page
    policy = next(attrs["content"] for tag, attrs in Page(page).elements if tag == "meta" and "content" in attrs)
    assert policy is not None
    meta = [attrs.get("content") or "" for tag, attrs in Page(page).elements if tag == "meta"]
    assert any(each.startswith("default-src 'none'") for each in meta)


def test_page_of_an_empty_graph_has_a_message() -> None:
    page = ThoughtGraph().to_html()
    assert "There are no thoughts in this run." in page
    assert Page(page).nodes() == []


hostile = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--", "$data $title", "]]>"]
    ),
)


@given(title=hostile, id=hostile, content=hostile, related=hostile, call_name=hostile)
def test_text_of_the_model_is_escaped(title: str, id: str, content: str, related: str, call_name: str) -> None:
    harmless = ThoughtGraph.of(
        [ContentCompleteEvent(step="1", tool_calls=[ToolCall(id="c", name="n")]), thought("a", "b", "c")]
    )
    graph = ThoughtGraph.of(
        [ContentCompleteEvent(step="1", tool_calls=[ToolCall(id="c", name=call_name)]), thought(id, content, "c")]
    )
    page = Page(graph.to_html(title))
    tags = [tag for tag, _ in page.elements]
    if id != "c":
        assert tags == [tag for tag, _ in Page(harmless.to_html("t")).elements]
    assert orjson.loads(page.data)["nodes"][-1]["content"] == content
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


@given(st.lists(st.integers(0, 12), max_size=14))
def test_boxes_do_not_overlap_and_chains_go_to_the_right(parents: list[int]) -> None:
    graph = ThoughtGraph.of([thought(f"t{at}", related_to=f"t{parent}") for at, parent in enumerate(parents)])
    nodes, edges = graph._drawing()  # pyright: ignore[reportPrivateUsage]
    spots = layout(nodes, edges)
    assert spots.keys() == nodes.keys()
    boxes = list(spots.values())
    for at, (x, y) in enumerate(boxes):
        assert all(abs(x - other) >= WIDTH or abs(y - row) >= HEIGHT for other, row in boxes[:at])
    # Each cycle has one backward edge.
    backwards = [link for link in edges if spots[link.target][0] <= spots[link.source][0]]
    assert len(backwards) <= len(nodes) / 2
    assert all(spots[link.target][0] == spots[link.source][0] + STEP for link in set(edges) - set(backwards))


@pytest.mark.service("chromium")
def test_browser_shows_the_node_named_in_the_address(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    file = tmp_path / "graph.html"
    file.write_text(example().to_html("Is it warm?"), encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{file.as_uri()}#n2"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    panel = shown[shown.index("<aside") : shown.index("</aside>")]
    assert "planning · seen" in panel
    assert "It is 20 C." in panel
    assert "It is 68 F." in panel
    assert 'href="#n1"' in panel
    assert 'href="#n3"' in panel


def test_calls_without_references_follow_their_thought() -> None:
    call = ToolCall(id="w", name="weather", arguments={})
    graph = ThoughtGraph.of([thought("plan", step="1"), ContentCompleteEvent(step="1", tool_calls=[call])])
    page = Page(graph.to_html())
    assert page.nodes() == ["n0", "n1"]
    [path] = [attrs for tag, attrs in page.elements if tag == "path" and "data-edge" in attrs]
    assert (path["class"], path["data-edge"]) == ("placed", "n0 n1")
    assert orjson.loads(page.data)["edges"] == []
