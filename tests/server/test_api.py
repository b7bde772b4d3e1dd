"""The routes of the HTTP API, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunContext, Runtime, tool
from rxloop.server import ServerLimits, api, bearer
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import TOKENS, RunningApi, serve_api, serve_app


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def clerk(*turns: Any, name: str = "clerk", **options: Any) -> Agent[Any, Any]:
    script = turns or (call("pay", amount=5), frames("-It -is -paid.|", 0.001))
    return Agent(ScriptedModel(*script), tools=[pay], thoughts=False, name=name, **options)


def endless() -> Agent[Any, Any]:
    return clerk(frames("-and so on", 0.01))


@asynccontextmanager
async def using(served: RunningApi, token: str | None = "ann-key") -> AsyncGenerator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=20) as client:
        yield client


async def test_a_run_pauses_for_an_answer_and_goes_on() -> None:
    async with serve_api(clerk()) as served, using(served) as client:
        started = await client.post("/runs?wait=10", json={"input": "Pay 5", "metadata": {"ticket": 7}})
        run = started.json()
        [question] = run["pending"]
        assert (started.status_code, run["state"], run["metadata"]) == (200, "input-required", {"ticket": 7})
        assert started.headers["location"] == f"/runs/{run['taskId']}"
        path = f"/runs/{run['taskId']}/resume"
        misfit = await client.post(path, json={"inputs": {question["inputId"]: "perhaps"}})
        unasked = await client.post(path, json={"type": "resume", "inputs": {"nobody asked": True}})
        waiting = (await client.get(f"/runs/{run['taskId']}")).json()
        resumed = await client.post(f"{path}?wait=10", json={"inputs": {question["inputId"]: True}})
        again = await client.post(path, json={"inputs": {question["inputId"]: True}})
        other = await client.post(path, json={"inputs": {question["inputId"]: False}})
    assert (misfit.status_code, misfit.json()["error"]["code"]) == (422, "invalid_input")
    assert (unasked.status_code, unasked.json()["error"]["code"]) == (409, "not_waiting")
    assert waiting["state"] == "input-required"
    assert resumed.json()["content"] == "It is paid."
    assert again.status_code == 200
    assert other.status_code == 409


async def test_an_answer_without_waiting_says_that_the_run_goes_on() -> None:
    async with serve_api(clerk()) as served, using(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay 5"})).json()
        answer = {"inputs": {run["pending"][0]["inputId"]: True}}
        resumed = await client.post(f"/runs/{run['taskId']}/resume", json=answer)
        assert (resumed.status_code, resumed.json()["state"], "pending" in resumed.json()) == (202, "working", False)
        assert (await client.get(f"/runs/{run['taskId']}?wait=10")).json()["state"] == "completed"


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_waiting_for_a_run_that_goes_on_after_a_question_waits_for_its_next_rest(seconds: float) -> None:
    agent = clerk(call("pay", amount=5), frames("-It -is -paid.|", 0.2))
    async with serve_api(agent) as served, using(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay 5"})).json()
        answer = {"inputs": {run["pending"][0]["inputId"]: True}}
        await client.post(f"/runs/{run['taskId']}/resume", json=answer)
        await asyncio.sleep(seconds)
        assert (await client.get(f"/runs/{run['taskId']}?wait=10")).json()["state"] == "completed"


async def test_a_key_is_one_run_however_often_it_is_sent() -> None:
    async with serve_api(clerk("One.", "Two.")) as served, using(served) as client, using(served, "bob-key") as bob:
        key = {"idempotency-key": "request-1"}
        answers = await asyncio.gather(*(client.post("/runs", json={"input": "Hi"}, headers=key) for _ in range(5)))
        other = await client.post("/runs", json={"input": "Something else"}, headers=key)
        his = await bob.post("/runs", json={"input": "Hi"}, headers=key)
    assert len({each.json()["taskId"] for each in answers}) == 1
    assert (other.status_code, other.json()["error"]["code"]) == (422, "key_used")
    assert his.json()["taskId"] != answers[0].json()["taskId"]


async def test_a_key_that_comes_again_starts_no_run_and_so_counts_for_none() -> None:
    limits = ServerLimits(runs=1)
    async with serve_api(endless(), limits=limits) as served, using(served) as client:
        key = {"idempotency-key": "request-1"}
        first, again = [await client.post("/runs", json={"input": "Hi"}, headers=key) for _ in range(2)]
        other = await client.post("/runs", json={"input": "Hi"})
    assert (first.status_code, again.status_code, other.status_code) == (202, 202, 429)
    assert first.json()["taskId"] == again.json()["taskId"]


async def test_a_start_can_stream_its_events() -> None:
    async with serve_api(clerk("Hello.")) as served, using(served) as client:
        answer = await client.post("/runs", json={"input": "Hi"}, headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"] == "text/event-stream"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
    assert answer.text.startswith("retry: 2000\n\nid: ")
    assert '"state":"completed"' in answer.text.split("\n\n")[-2]


@pytest.mark.parametrize("leaves", ["keep", "cancel"])
async def test_what_becomes_of_a_run_whose_reader_leaves_is_said_by_the_request(leaves: str) -> None:  # L137
    async with serve_api(endless()) as served, using(served) as client:
        path = f"/runs?onDisconnect={leaves}"
        accept = {"accept": "application/x-ndjson"}
        async with client.stream("POST", path, json={"input": "Go on"}, headers=accept) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if "content-delta" in line:
                    break
        task_id = (await client.get("/runs")).json()["runs"][0]["taskId"]
        seconds = 10 if leaves == "cancel" else 0.3
        run = (await client.get(f"/runs/{task_id}?wait={seconds}")).json()
        assert not served.gateway._open
        if leaves == "keep":
            assert run["state"] == "working"
            run = (await client.post(f"/runs/{task_id}/cancel", json={"reason": "enough"})).json()
    assert (run["state"], run["reason"]) == ("canceled", "canceled")


async def test_a_cancel_is_in_the_log_when_it_is_answered_and_may_come_twice() -> None:
    log = MemoryEventLog()
    async with serve_api(endless(), log=log) as served, using(served) as client:
        run = (await client.post("/runs", json={"input": "Go on"})).json()
        first = await client.post(f"/runs/{run['taskId']}/cancel")
        assert (await log.get_record(run["taskId"])).state == "canceled"
        second = await client.post(f"/runs/{run['taskId']}/cancel", json={})
    assert (first.status_code, second.status_code, second.json()["state"]) == (200, 200, "canceled")


async def test_a_message_reaches_a_run_that_goes_on_and_none_that_is_over() -> None:
    model = ScriptedModel(frames("-on and on", 0.01), "On Saturday, then.")
    async with serve_api(Agent(model, thoughts=False, name="clerk")) as served, using(served) as client:
        run = (await client.post("/runs", json={"input": "When?"})).json()
        async with client.stream("GET", run["events"]) as stream:
            async for line in stream.aiter_lines():
                if "content-delta" in line:
                    break
        said = await client.post(f"/runs/{run['taskId']}/say", json={"input": "Not on Friday", "interrupt": True})
        over = (await client.get(f"/runs/{run['taskId']}?wait=10")).json()
        late = await client.post(f"/runs/{run['taskId']}/say", json={"input": "Too late"})
    assert said.status_code == 202
    assert over["content"] == "On Saturday, then."
    assert (late.status_code, late.json()["error"]["code"]) == (409, "run_over")


async def test_a_fork_has_the_owner_of_its_run_and_goes_its_own_way() -> None:
    async with serve_api(clerk("Oslo.", "Bergen.")) as served, using(served) as client, using(served, "bob-key") as bob:
        run = (await client.post("/runs?wait=10", json={"input": "Where?"})).json()
        made = await client.post(f"/runs/{run['taskId']}/fork", json={"at": 1, "input": "And where else?"})
        fork = (await client.get(f"/runs/{made.json()['taskId']}?wait=10")).json()
        wrong = await client.post(f"/runs/{run['taskId']}/fork", json={"at": 999})
        hers = await bob.get(f"/runs/{fork['taskId']}")
    assert (made.status_code, fork["content"]) == (202, "Bergen.")
    assert wrong.status_code == 422
    assert hers.status_code == 404


async def test_runs_are_listed_by_page_and_conversations_are_read() -> None:
    async with serve_api(clerk("One.", "Two.", "Three.")) as served, using(served) as client:
        for question in ("1?", "2?", "3?"):
            await client.post("/runs?wait=10", json={"input": question, "contextId": "talk"})
        page = (await client.get("/runs?contextId=talk&limit=2")).json()
        rest = (await client.get(f"/runs?contextId=talk&after={page['next']}")).json()
        shown = (await client.get("/contexts/talk/messages")).json()["messages"]
        async with using(served, "bob-key") as bob:
            assert (await bob.get("/runs")).json() == {"runs": [], "next": None}
            assert (await bob.get("/contexts/talk/messages")).status_code == 404
            theirs = await bob.post("/runs", json={"input": "Let me in", "contextId": "talk"})
    assert (len(page["runs"]), len(rest["runs"]), rest["next"]) == (2, 1, None)
    assert [each["content"] for each in shown] == ["1?", "One.", "2?", "Two.", "3?", "Three."]
    assert theirs.status_code == 404


async def test_a_second_turn_waits_or_is_refused() -> None:  # L120
    async with serve_api(clerk(frames("-slow-ly|", 0.2), "Two.")) as served, using(served) as client:
        first = (await client.post("/runs", json={"input": "1", "contextId": "talk"})).json()
        body = {"input": "2", "contextId": "talk"}
        refused = await client.post("/runs", json={**body, "whenBusy": "refuse"})
        second = (await client.post("/runs?wait=10", json=body)).json()
        assert (await client.get(f"/runs/{first['taskId']}")).json()["state"] == "completed"
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "context_busy")
    assert second["content"] == "Two."


async def test_runs_and_streams_of_a_principal_are_limited() -> None:
    limits = ServerLimits(runs=2, streams=1)
    agent = clerk(*[frames("-and so on", 0.01)] * 3)
    async with serve_api(agent, limits=limits) as served, using(served) as client, using(served, "bob-key") as bob:
        answers = await asyncio.gather(*(client.post("/runs", json={"input": "Go"}) for _ in range(4)))
        assert sorted(each.status_code for each in answers)[:2] == [202, 202]
        refused = next(each for each in answers if each.status_code == 429)
        assert int(refused.headers["retry-after"]) > 0
        assert (await bob.post("/runs", json={"input": "Go"})).status_code == 202
        run = next(each for each in answers if each.status_code == 202).json()
        async with client.stream("GET", run["events"]) as stream:
            await anext(stream.aiter_bytes())
            assert (await client.get(run["events"])).status_code == 429
        assert len((await client.get("/runs")).json()["runs"]) == 2


@pytest.mark.parametrize("query", ["", "?wait=5"])
async def test_what_is_refused_for_want_of_a_stream_has_begun_nothing(query: str) -> None:
    accept = {"accept": "application/json" if query else "text/event-stream"}
    pays = call("pay", amount=5)
    agent = Agent(ScriptedModel(pays, frames("-and so on", 0.01)), tools=[pay], thoughts=False, name="clerk")
    async with serve_api(agent, limits=ServerLimits(streams=1)) as served, using(served) as client:
        waiting = (await client.post("/runs?wait=10", json={"input": "Pay"})).json()
        inputs = {waiting["pending"][0]["inputId"]: True}
        reading = (await client.post("/runs", json={"input": "Go on"})).json()
        async with client.stream("GET", reading["events"]) as stream:
            pieces = stream.aiter_bytes()
            await anext(pieces)
            start = await client.post(f"/runs{query}", json={"input": "Go"}, headers=accept)
            answer = await client.post(
                f"/runs/{waiting['taskId']}/resume{query}", json={"inputs": inputs}, headers=accept
            )
            runs = (await client.get("/runs")).json()["runs"]
    assert (start.status_code, answer.status_code) == (429, 429)
    assert sorted(each["state"] for each in runs) == ["input-required", "working"]


async def test_a_run_that_has_started_is_accepted_when_another_request_takes_the_last_stream() -> None:
    agent = clerk(*[frames("-done|", 0.05)] * 2)
    async with serve_api(agent, limits=ServerLimits(streams=1)) as served, using(served) as client:
        answers = await asyncio.gather(*(client.post("/runs?wait=10", json={"input": "Go"}) for _ in range(2)))
        runs = (await client.get("/runs")).json()["runs"]
    accepted = [each for each in answers if each.status_code in (200, 202)]
    assert {each.json()["taskId"] for each in accepted} == {each["taskId"] for each in runs}
    assert all(each.headers["location"].endswith(each.json()["taskId"]) for each in accepted)


async def test_a_server_that_drains_takes_nothing_new_and_ends_its_streams_with_a_word() -> None:  # L140
    async with serve_api(endless()) as served, using(served) as client:
        run = (await client.post("/runs", json={"input": "Go on"})).json()
        async with client.stream("GET", run["events"]) as stream:
            reading = aiter(stream.aiter_text())
            text = await anext(reading)
            draining = asyncio.create_task(served.app.drain(0.3))
            await asyncio.sleep(0.05)
            ready = await client.get("/readyz")
            late = await client.post("/runs", json={"input": "One more"})
            async for piece in reading:
                text += piece
        await draining
        again = await client.get(run["events"])
        record = await served.runtime.log.get_record(run["taskId"])
    assert (ready.status_code, late.status_code, again.status_code) == (503, 503, 503)
    assert int(late.headers["retry-after"]) > 0
    assert text.endswith(": the server goes away, come back with the last id\n\n")
    assert record.state == "working"


async def test_a_server_that_is_served_by_itself_enters_its_runtime() -> None:
    runtime = Runtime({"clerk": clerk("Hello.")}, log=MemoryEventLog(), grace=0.2)
    app = api(runtime)
    async with app._app.router.lifespan_context(app._app), serve_app(app) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/runs?wait=10", json={"input": "Hi"})).json()["content"] == "Hello."
    assert not runtime.open


async def test_a_log_that_is_out_of_reach_is_503() -> None:
    from rxloop.errors import EventLogError

    class Away(MemoryEventLog):
        async def list_runs(self, **options: Any) -> Any:
            raise EventLogError("the disk is gone", retryable=False)

    log = Away()
    runtime = Runtime({"clerk": clerk("Hello.")}, log=log, grace=0.2, adopt_every=60)
    async with serve_app(api(runtime)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        answer = await client.get("/runs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log")
    assert "disk" not in answer.text


async def test_deps_come_of_the_owner_and_not_of_what_a_client_says() -> None:
    @tool
    async def whoami(ctx: RunContext[str]) -> str:
        """Who asks."""
        return ctx.deps

    agent = Agent(
        ScriptedModel(call("whoami"), lambda request: str(request.messages[-1].text)),
        tools=[whoami],
        deps_type=str,
        thoughts=False,
        name="clerk",
    )
    options = {"deps": lambda record: record.owner}
    async with serve_api(agent, runtime=options) as served, using(served) as client:
        run = await client.post("/runs?wait=10", json={"input": "Who?", "metadata": {"owner": "bob"}})
    assert run.json()["content"] == "ann"


async def test_thoughts_are_drawn() -> None:
    async with serve_api(clerk("Hello.")) as served, using(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Hi"})).json()
        kinds = [(await client.get(f"/runs/{run['taskId']}/graph?form={form}")) for form in ("json", "mermaid", "html")]
    assert [each.status_code for each in kinds] == [200, 200, 200]
    assert kinds[1].text.startswith("flowchart")


async def test_who_asks_may_be_found_out_by_a_function_that_fails_or_blocks() -> None:
    def broken(request: Any) -> Any:
        raise LookupError("the user table")

    async with serve_api(clerk("Hello."), auth=broken) as served, using(served) as client:
        answer = await client.get("/runs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert "user table" not in answer.text
        assert (await client.get("/healthz")).status_code == 200


def test_bearer_takes_names_and_principals() -> None:
    assert callable(bearer(TOKENS))


async def test_a_client_sets_of_the_model_calls_what_the_server_lets_it() -> None:
    model = ScriptedModel("One.", "Two.")
    options: dict[str, Any] = {"settings": ("temperature", "max_tokens")}
    async with serve_api(Agent(model, name="clerk"), **options) as served, using(served) as client:
        body = {"input": "Hi", "settings": {"temperature": 0.5, "maxTokens": 20}}
        run = await client.post("/runs?wait=10", json=body)
        refused = await client.post("/runs", json={"input": "Hi", "settings": {"seed": 7, "temperature": 0}})
        wrong = await client.post("/runs", json={"input": "Hi", "settings": {"temperature": "hot"}})
        unknown = await client.post("/runs", json={"input": "Hi", "settings": {"extraBody": {"key": "mine"}}})
    assert run.json()["state"] == "completed"
    assert (model.requests[0].settings.temperature, model.requests[0].settings.max_tokens) == (0.5, 20)
    assert (refused.status_code, [*refused.json()["error"]["fields"]]) == (422, ["settings.seed"])
    assert (wrong.status_code, unknown.status_code) == (422, 400)
    assert len(model.requests) == 1


def test_settings_that_there_are_not_are_refused_when_the_server_is_made() -> None:
    for wrong in (("heat",), "temperature"):
        with pytest.raises(ConfigurationError, match="settings must be names"):
            api(Runtime({"clerk": clerk()}, log=MemoryEventLog()), settings=wrong)


@pytest.mark.parametrize("keep", [True, False])
async def test_a_reader_is_told_what_it_gets_of_the_deltas(keep: bool) -> None:
    log = MemoryEventLog(keep_deltas=keep)
    script = frames("-It -is -so.|", 0.05)
    other = Runtime({"clerk": clerk()}, log=log, grace=0.1, adopt_every=60)
    stream = {"accept": "application/x-ndjson"}
    async with serve_api(clerk(script), log=log) as served, using(served) as client, other:
        async with serve_app(api(other)) as url, httpx.AsyncClient(base_url=url) as elsewhere:
            run = (await client.post("/runs", json={"input": "Hi"})).json()
            here, there = await asyncio.gather(client.get(run["events"]), elsewhere.get(run["events"]))
            after = await client.get(run["events"])
            replayed = await client.get(f"{run['events']}?speed=1000")
            started = await client.post("/runs", json={"input": "Hi"}, headers=stream)
            record = (await elsewhere.get(f"/runs/{run['taskId']}")).json()
    kept = "kept" if keep else "none"
    said = [each.headers["rxloop-deltas"] for each in (here, there, after, replayed, started)]
    assert said == ["live", kept, kept, kept, "live"]
    assert (run["deltas"], record["deltas"]) == ("live", kept)
    has = ["content-delta" in each.text for each in (here, there, after, replayed)]
    assert has == [True, keep, keep, keep]


class _Slow(MemoryEventLog):
    """A log that others work with meanwhile; it may be told to do something before it answers."""

    meanwhile: Any = None

    async def list_runs(self, *args: Any, **options: Any) -> Any:
        found = await super().list_runs(*args, **options)
        await self._wait()
        return found

    async def get_record(self, task_id: str) -> Any:
        found = await super().get_record(task_id)
        await self._wait()
        return found

    async def _wait(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("what", ["start", "fork", "answer"])
async def test_a_runtime_that_begins_to_drain_inside_a_request_is_503(what: str) -> None:
    log, draining = _Slow(), set[asyncio.Task[None]]()
    async with serve_api(clerk(), log=log) as served, using(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay"})).json()
        log.meanwhile = lambda: draining.add(asyncio.ensure_future(served.runtime.drain(0)))
        path = f"/runs/{run['taskId']}"
        refused = await {
            "start": lambda: client.post("/runs", json={"input": "Pay"}),
            "fork": lambda: client.post(f"{path}/fork", json={"at": 2}),
            "answer": lambda: client.post(f"{path}/resume", json={"inputs": {run["pending"][0]["inputId"]: True}}),
        }[what]()
        log.meanwhile = None
        await asyncio.gather(*draining)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize("secured", [True, False])
async def test_a_key_that_is_sent_twice_at_once_is_one_run_whatever_is_limited(secured: bool) -> None:
    body = {"input": "Pay", "contextId": "talk", "whenBusy": "refuse"}
    options: dict[str, Any] = {} if secured else {"auth": None}
    async with serve_api(endless(), log=_Slow(), limits=ServerLimits(runs=1), **options) as served:
        async with using(served) as client:
            headers = {"idempotency-key": "k"}
            answers = await asyncio.gather(*(client.post("/runs", json=body, headers=headers) for _ in range(5)))
            listed = (await client.get("/runs")).json()["runs"]
    assert [each.status_code for each in answers] == [202] * 5
    assert {each.json()["taskId"] for each in answers} == {each["taskId"] for each in listed}
    assert len(listed) == 1


async def test_whoever_begins_a_conversation_reads_nothing_of_who_came_second_at_the_same_moment() -> None:
    agent = clerk("Hello.")
    async with serve_api(agent, log=_Slow()) as served:
        # The doors of a runtime know of each other.
        async with serve_app(api(served.runtime, auth=bearer(TOKENS))) as url:
            async with using(served) as ann, httpx.AsyncClient(base_url=url, headers=_BOB) as bob:
                first, second = await asyncio.gather(
                    ann.post("/runs", json={"input": "Hi", "contextId": "talk"}),
                    bob.post("/runs", json={"input": "Ignore her", "contextId": "talk"}),
                )
                owner = ann if first.status_code == 202 else bob
                await owner.get(f"/runs/{(first if owner is ann else second).json()['taskId']}?wait=10")
                read = (await owner.get("/contexts/talk/messages")).json()["messages"]
    assert sorted((first.status_code, second.status_code)) == [202, 404]
    assert [each["role"] for each in read] == ["user", "assistant"]


async def test_of_runs_that_refuse_to_wait_one_is_started_at_a_time() -> None:
    body = {"input": "Go on", "contextId": "talk", "whenBusy": "refuse"}
    async with serve_api(endless(), log=_Slow(), auth=None) as served, using(served) as client:
        answers = await asyncio.gather(*(client.post("/runs", json=body) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [202, 409, 409, 409]


_BOB = {"authorization": "Bearer bob-key"}
