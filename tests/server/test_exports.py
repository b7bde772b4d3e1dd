"""Exports of runs over HTTP."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog, tool
from rxloop.cli.commands.transfer import read_runs
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.evals import Case
from rxloop.server import Principal, bearer
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.hidden_tools import MARK, fail, peek


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", tools=[add, peek, fail], **options)


def read_blocks(html: str) -> dict[str, str]:
    """Return the data blocks of an HTML file."""
    found = re.findall(r'<script type="application/gzip" data-name="([^"]+)">([^<]*)</script>', html)
    return {name: gzip.decompress(base64.b64decode(data)).decode() for name, data in found}


TURNS = ([call("add", a=2, b=3), call("fail")], "It is 5. </script><b>")


async def test_jsonl_with_internal_data_can_be_imported() -> None:
    async with serve_api(make_clerk(*TURNS)) as served, Client(served.url, token="root-key") as root:
        run = await root.start(None, "Add", wait=10)
        data = await root.export(run.task_id, internal=True)
        events = read_runs(data.encode(), "file")[run.task_id]
        log = MemoryEventLog()
        await log.append(run.task_id, events, expected_seq=0)
        copy = await log.get_record(run.task_id)
    assert (copy.state, copy.seq) == ("completed", run.seq)


async def test_exported_test_passes(tmp_path: Path) -> None:
    async with serve_api(make_clerk(*TURNS)) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, 'Add "2" and {3}\u2028\x85', wait=10)
        text = await ann.export(run.task_id, "pytest")
    file = tmp_path / "test_run.py"

    def run_test() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)

    file.write_text(text, encoding="utf-8")
    done = run_test()
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    # The test notices another answer.
    assert text.count("ANSWER = 'It is 5.") == 1
    file.write_text(text.replace("ANSWER = 'It is 5.", "ANSWER = 'It is 6."), encoding="utf-8")
    assert run_test().returncode == 1


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([call(f"peek_{MARK}"), "Done."], "has hidden calls"),
        ([call("add", a=1, b=1), *[RuntimeError("broken")] * 9], "is not completed"),
    ],
)
async def test_run_that_a_test_cannot_repeat_is_refused(turns: Any, reason: str) -> None:
    async with serve_api(make_clerk(*turns)) as served, make_client(served.url) as http:
        run = (await http.post("/runs?wait=10", json={"input": "Go"})).json()
        refused = await http.get(f"/runs/{run['taskId']}/export?form=pytest")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_exportable")
    assert reason in refused.json()["error"]["message"]


async def test_exported_case_can_be_read(tmp_path: Path) -> None:
    async with serve_api(make_clerk("Oslo.")) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Capital of Norway?", wait=10)
        file = tmp_path / "cases.jsonl"
        file.write_text(await ann.export(run.task_id, "case"), encoding="utf-8")
    assert Case.read(file) == [Case("Capital of Norway?", "Oslo.", id=run.task_id)]


async def test_markdown_contains_the_conversation() -> None:
    async with serve_api(make_clerk(*TURNS)) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Add them", wait=10)
        text = await ann.export(run.task_id, "markdown")
    assert text.startswith(f"# Run {run.task_id}\n\n## User\n\nAdd them\n")
    assert "Tool call: `add(a=2, b=3)`" in text
    assert text.rstrip().endswith("It is 5. </script><b>")


async def test_otlp_contains_the_spans() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    async with serve_api(make_clerk(*TURNS)) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Add them", wait=10)
        data = json.loads(await ann.export(run.task_id, "otlp"))
    [resource] = data["resourceSpans"]
    spans = [span for scope in resource["scopeSpans"] for span in scope["spans"]]
    assert {"execute_tool add", "execute_tool fail"} <= {span["name"] for span in spans}
    assert all(re.fullmatch("[0-9a-f]{32}", span["traceId"]) for span in spans)
    assert "Add them" not in json.dumps(data)


async def test_missing_package_for_otlp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rxloop.telemetry.export", None)
    async with serve_api(make_clerk("Hi.")) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Hi", wait=10)
        with pytest.raises(ApiError, match="pip install opentelemetry-exporter-otlp-proto-http") as refused:
            await ann.export(run.task_id, "otlp")
    assert refused.value.status == 409


@pytest.mark.parametrize("form", ["html", "jsonl", "otlp", "markdown", "case"])
async def test_public_exports_contain_no_internal_data(form: Any) -> None:
    if form == "otlp":
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    agent = make_clerk(call(f"peek_{MARK}", at=MARK), "Done.", instructions=f"System {MARK}")
    async with serve_api(agent) as served:
        metadata = {"secret": MARK, "public": {"a": "shown"}}
        run = await served.runtime.start("clerk", "Look", owner="ann", metadata=metadata)
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="root-key") as root:
            await ann.record(run.task_id, wait=10)
            public = await ann.export(run.task_id, form)
            internal = await root.export(run.task_id, form, internal=True)
    text = "".join(read_blocks(public).values()) if form == "html" else public
    assert MARK not in public + text
    if form == "html":
        assert MARK in "".join(read_blocks(internal).values())
        assert "Done." in text


async def test_html_contains_the_run_in_blocks() -> None:
    async with serve_api(make_clerk(*TURNS)) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Add </script><script>alert(1)</script>", wait=10)
        html = await ann.export(run.task_id, "html")
        part = await ann.export(run.task_id, "html", until=3)
        outline, events = await ann.outline(run.task_id), await ann.events(run.task_id)
    blocks = read_blocks(html)
    names = ["meta", "outline", "problems", "events-1", "states", "requests", "sent", "sent-0", "texts-0"]
    assert list(blocks) == names
    meta = json.loads(blocks["meta"])
    assert (meta["format"], meta["taskId"], meta["last"], meta["blocks"]) == (1, run.task_id, run.seq, [1])
    assert meta["me"]["may"] == {"act": False, "internal": False, "others": False}
    assert (meta["run"]["content"], meta["run"]["finishReason"]) == ("It is 5. </script><b>", "stop")
    assert "content" not in json.loads(read_blocks(part)["meta"])["run"]
    assert json.loads(blocks["outline"]) == [json.loads(outline.model_dump_json(by_alias=True))]
    assert [json.loads(line)["seq"] for line in blocks["events-1"].splitlines()] == [event.seq for event in events]
    assert "alert(1)" not in html
    assert re.search(r'content="[^"]*connect-src &#x27;none&#x27;', html)
    assert [json.loads(line)["seq"] for line in read_blocks(part)["events-1"].splitlines()] == [1, 2, 3]
    assert json.loads(read_blocks(part)["outline"])[0]["final"] is True


async def test_export_is_a_file_of_the_owner(tmp_path: Path) -> None:
    log: EventLog = SqliteEventLog(tmp_path / "runs.db")
    async with serve_api(make_clerk("Hi."), log=log) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        file = await ann.get(f"/runs/{task_id}/export?form=html")
        path = f"/runs/{task_id}/export"
        statuses = [(await ann.get(f"{path}?{query}")).status_code for query in ("visibility=all", "form=exe")]
        async with make_client(served.url, "bob-key") as bob:
            statuses.append((await bob.get(f"/runs/{task_id}/export")).status_code)
    await log.aclose()
    assert statuses == [403, 422, 404]
    assert re.fullmatch(r'attachment; filename="run-[\w-]+\.html"', file.headers["content-disposition"])
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["x-content-type-options"] == "nosniff"


async def test_run_is_appended_to_the_cases(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    users = {"ann-key": Principal("ann", frozenset({"cases"})), "bob-key": Principal("bob")}
    async with serve_api(make_clerk("Paid.", "Paid."), auth=bearer(users), cases=path) as served:
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="bob-key") as bob:
            first, second = await ann.start(None, "Invoice?", wait=10), await ann.start(None, "Receipt?", wait=10)
            own = await bob.start(None, "Mine?", wait=10)
            assert (await ann.me()).may.cases
            assert not (await bob.me()).may.cases
            assert (await ann.add_case(first.task_id)).count == 1
            added = await ann.add_case(second.task_id, expected="")
            assert (added.id, added.count) == (second.task_id, 2)
            for client, run, status in ((bob, own, 403), (bob, first, 404), (ann, first, 409)):
                with pytest.raises(ApiError) as refused:
                    await client.add_case(run.task_id)
                assert refused.value.status == status
            path.write_bytes(path.read_bytes() + b"damaged")
            with pytest.raises(ApiError, match="line 3 is not valid JSON"):
                await ann.add_case(second.task_id)
    assert path.read_bytes().endswith(b"damaged")
    cases = [json.loads(line) for line in path.read_bytes().splitlines()[:2]]
    assert cases == [
        {"id": first.task_id, "input": "Invoice?", "expected": "Paid."},
        {"id": second.task_id, "input": "Receipt?"},
    ]


async def test_server_without_a_file_for_cases_refuses_them() -> None:
    users = {"ann-key": Principal("ann", frozenset({"cases"}))}
    async with serve_api(make_clerk("Paid."), auth=bearer(users)) as served:
        async with Client(served.url, token="ann-key") as ann:
            run = await ann.start(None, "Invoice?", wait=10)
            assert not (await ann.me()).may.cases
            with pytest.raises(ApiError, match="rxloop view --cases FILE"):
                await ann.add_case(run.task_id)
