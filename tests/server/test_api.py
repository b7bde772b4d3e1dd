"""Endpoints of the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunContext, Runtime, op, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.server import ServerLimits, api, bearer
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import TOKENS, RunningApi, serve_api, serve_app


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_clerk(*turns: Any, name: str = "clerk", **options: Any) -> Agent[Any, Any]:
    script = turns or (call("pay", amount=5), frames("-It -is -paid.|", 0.001))
    return Agent(ScriptedModel(*script), tools=[pay], thoughts=False, name=name, **options)


def make_endless() -> Agent[Any, Any]:
    return make_clerk(frames("-and so on", 0.01))


@asynccontextmanager
async def connect(served: RunningApi, token: str | None = "ann-key") -> AsyncGenerator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=20) as client:
        yield client


async def test_run_pauses_for_an_answer_and_continues() -> None:
    async with serve_api(make_clerk()) as served, connect(served) as client:
        started = await client.post("/runs?wait=10", json={"input": "Pay 5", "metadata": {"ticket": 7}})
        run = started.json()
        [question] = run["pending"]
        assert started.status_code == 200
        assert run["state"] == "input-required"
        assert run["metadata"] == {"ticket": 7}
        assert started.headers["location"] == f"/runs/{run['taskId']}"
        path = f"/runs/{run['taskId']}/resume"
        rejected = await client.post(path, json={"inputs": {question["inputId"]: "perhaps"}})
        unasked = await client.post(path, json={"type": "resume", "inputs": {"never retrieved": True}})
        waiting = (await client.get(f"/runs/{run['taskId']}")).json()
        resumed = await client.post(f"{path}?wait=10", json={"inputs": {question["inputId"]: True}})
        repeated = await client.post(path, json={"inputs": {question["inputId"]: True}})
        other = await client.post(path, json={"inputs": {question["inputId"]: False}})
    assert rejected.status_code == 422
    assert rejected.json()["error"]["code"] == "invalid_input"
    [(field, mismatch)] = rejected.json()["error"]["fields"].items()
    assert (field, mismatch.partition(",")[0]) == (f"inputs.{question['inputId']}", "the value must be a JSON boolean")
    assert unasked.status_code == 409
    assert unasked.json()["error"]["code"] == "not_waiting"
    assert waiting["state"] == "input-required"
    assert resumed.json()["content"] == "It is paid."
    assert repeated.status_code == 200
    assert other.status_code == 409


async def test_answer_without_wait_returns_the_working_run() -> None:
    async with serve_api(make_clerk()) as served, connect(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay 5"})).json()
        answer = {"inputs": {run["pending"][0]["inputId"]: True}}
        resumed = await client.post(f"/runs/{run['taskId']}/resume", json=answer)
        assert resumed.status_code == 202
        assert resumed.json()["state"] == "working"
        assert ("pending" in resumed.json()) is False
        assert (await client.get(f"/runs/{run['taskId']}?wait=10")).json()["state"] == "completed"


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_wait_after_an_answer_lasts_until_the_run_is_idle_again(seconds: float) -> None:
    agent = make_clerk(call("pay", amount=5), frames("-It -is -paid.|", 0.2))
    async with serve_api(agent) as served, connect(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay 5"})).json()
        answer = {"inputs": {run["pending"][0]["inputId"]: True}}
        await client.post(f"/runs/{run['taskId']}/resume", json=answer)
        await asyncio.sleep(seconds)
        assert (await client.get(f"/runs/{run['taskId']}?wait=10")).json()["state"] == "completed"


async def test_messages_of_a_conversation_can_be_sent_as_input() -> None:
    async with serve_api(make_clerk()) as served, connect(served) as client:
        first = (await client.post("/runs?wait=10", json={"input": "Pay 5"})).json()
        stored = (await client.get(f"/contexts/{first['contextId']}/messages")).json()["messages"][0]
        message = {key: stored[key] for key in ("role", "content", "messageId")}
        started = await client.post("/runs", json={"input": [message]})
        others = [await client.post("/runs", json={"input": [message | {"role": role}]}) for role in ("system", "tool")]
    assert started.status_code == 202, started.text
    assert [other.status_code for other in others] == [422, 422]


async def test_idempotency_key_starts_one_run_per_owner() -> None:
    async with (
        serve_api(make_clerk("One.", "Two.")) as served,
        connect(served) as client,
        connect(served, "bob-key") as bob,
    ):
        key = {"idempotency-key": "request-1"}
        answers = await asyncio.gather(*(client.post("/runs", json={"input": "Hi"}, headers=key) for _ in range(5)))
        other = await client.post("/runs", json={"input": "Something else"}, headers=key)
        other_run = await bob.post("/runs", json={"input": "Hi"}, headers=key)
    assert len({each.json()["taskId"] for each in answers}) == 1
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "key_used"
    assert other_run.json()["taskId"] != answers[0].json()["taskId"]


async def test_repeated_key_does_not_count_against_the_limit_on_runs() -> None:
    limits = ServerLimits(runs=1)
    async with serve_api(make_endless(), limits=limits) as served, connect(served) as client:
        key = {"idempotency-key": "request-1"}
        first, repeated = [await client.post("/runs", json={"input": "Hi"}, headers=key) for _ in range(2)]
        other = await client.post("/runs", json={"input": "Hi"})
    assert first.status_code == 202
    assert repeated.status_code == 202
    assert other.status_code == 429
    assert first.json()["taskId"] == repeated.json()["taskId"]


async def test_start_can_stream_its_events() -> None:
    async with serve_api(make_clerk("Hello.")) as served, connect(served) as client:
        answer = await client.post("/runs", json={"input": "Hi"}, headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.startswith("retry: 2000\n\nid: ")
    assert '"state":"completed"' in answer.text.split("\n\n")[-2]


@pytest.mark.parametrize("on_disconnect", ["keep", "cancel"])
async def test_request_chooses_if_a_disconnect_cancels_the_run(on_disconnect: str) -> None:  # L137
    async with serve_api(make_endless()) as served, connect(served) as client:
        path = f"/runs?onDisconnect={on_disconnect}"
        accept = {"accept": "application/x-ndjson"}
        async with client.stream("POST", path, json={"input": "Go on"}, headers=accept) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if "content-delta" in line:
                    break
        task_id = (await client.get("/runs")).json()["runs"][0]["taskId"]
        seconds = 10 if on_disconnect == "cancel" else 0.3
        run = (await client.get(f"/runs/{task_id}?wait={seconds}")).json()
        assert not served.gateway._open
        if on_disconnect == "keep":
            assert run["state"] == "working"
            run = (await client.post(f"/runs/{task_id}/cancel", json={"reason": "enough"})).json()
    assert run["state"] == "canceled"
    assert run["reason"] == "canceled"


async def test_cancel_is_logged_before_the_answer_and_is_idempotent() -> None:
    log = MemoryEventLog()
    async with serve_api(make_endless(), log=log) as served, connect(served) as client:
        run = (await client.post("/runs", json={"input": "Go on"})).json()
        first = await client.post(f"/runs/{run['taskId']}/cancel")
        assert (await log.get_record(run["taskId"])).state == "canceled"
        second = await client.post(f"/runs/{run['taskId']}/cancel", json={})
    assert first.status_code == 200
    assert second.status_code == 200
    assert second.json()["state"] == "canceled"


async def test_message_is_accepted_by_a_working_run_and_refused_by_a_finished_one() -> None:
    model = ScriptedModel(frames("-on and on", 0.01), "On Saturday, then.")
    async with serve_api(Agent(model, thoughts=False, name="clerk")) as served, connect(served) as client:
        run = (await client.post("/runs", json={"input": "When?"})).json()
        async with client.stream("GET", run["events"]) as stream:
            async for line in stream.aiter_lines():
                if "content-delta" in line:
                    break
        sent = await client.post(f"/runs/{run['taskId']}/say", json={"input": "Not on Friday", "interrupt": True})
        finished = (await client.get(f"/runs/{run['taskId']}?wait=10")).json()
        late = await client.post(f"/runs/{run['taskId']}/say", json={"input": "Too late"})
    assert sent.status_code == 202
    assert finished["content"] == "On Saturday, then."
    assert late.status_code == 409
    assert late.json()["error"]["code"] == "run_over"


async def test_owner_changes_goals_of_a_waiting_run() -> None:
    goals, part = op.goals({"id": "pay", "title": "Pay 5"}), {"id": "ask", "title": "Ask", "dependsOn": ["pay"]}
    clerk = make_clerk(loop=op.standard(before_model=[goals]))
    async with (
        serve_api(clerk) as served,
        connect(served, "bob-key") as bob,
        Client(served.url, token="ann-key") as ann,
    ):
        run = await ann.start("clerk", "Pay 5", wait=10)
        foreign = await bob.post(f"/runs/{run.task_id}/goals", json={"changes": [part]})
        with pytest.raises(ApiError) as refused:
            await ann.update_goals(run.task_id, {"id": "pay", "depends_on": ["ask"]})
        changed = await ann.update_goals(run.task_id, {"id": "ask", "title": "Ask", "depends_on": ["pay"]})
        await ann.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
        with pytest.raises(ApiError, match="the run is over"):
            await ann.update_goals(run.task_id, {"id": "pay", "status": "done"})
        updates = [event async for event in ann.follow(run.task_id, kinds=["goals-updated"])]
    assert foreign.status_code == 404
    assert refused.value.code == "invalid"
    assert refused.value.fields == {"changes": "goal 'pay' refers to the unknown goal 'ask'; add 'ask' too"}
    assert changed.state == "input-required"
    assert [[goal.id for goal in update.goals] for update in updates] == [["pay"], ["pay", "ask"]]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


async def test_fork_has_the_owner_of_its_run_and_continues_independently() -> None:
    async with (
        serve_api(make_clerk("Oslo.", "Bergen.")) as served,
        connect(served) as client,
        connect(served, "bob-key") as bob,
    ):
        run = (await client.post("/runs?wait=10", json={"input": "Where?"})).json()
        forked = await client.post(f"/runs/{run['taskId']}/fork", json={"at": 1, "input": "And where else?"})
        fork = (await client.get(f"/runs/{forked.json()['taskId']}?wait=10")).json()
        invalid = await client.post(f"/runs/{run['taskId']}/fork", json={"at": 999})
        foreign = await bob.get(f"/runs/{fork['taskId']}")
    assert forked.status_code == 202
    assert fork["content"] == "Bergen."
    assert invalid.status_code == 422
    assert foreign.status_code == 404


async def test_runs_are_listed_by_page_and_conversations_can_be_read() -> None:
    async with serve_api(make_clerk("One.", "Two.", "Three.", "Four.")) as served, connect(served) as client:
        for question in ("1?", "2?", "3?"):
            await client.post("/runs?wait=10", json={"input": question, "contextId": "talk"})
        page = (await client.get("/runs?contextId=talk&limit=2")).json()
        last_page = (await client.get(f"/runs?contextId=talk&after={page['next']}")).json()
        messages = (await client.get("/contexts/talk/messages")).json()["messages"]
        async with connect(served, "bob-key") as bob:
            assert (await bob.get("/runs")).json() == {"runs": [], "next": None}
            assert (await bob.get("/contexts/talk/messages")).status_code == 404
            foreign = await bob.post("/runs?wait=10", json={"input": "Let me in", "contextId": "talk"})
            his = (await bob.get("/contexts/talk/messages")).json()["messages"]
    assert len(page["runs"]) == 2
    assert len(last_page["runs"]) == 1
    assert last_page["next"] is None
    assert [each["content"] for each in messages] == ["1?", "One.", "2?", "Two.", "3?", "Three."]
    assert foreign.status_code == 200
    assert [each["content"] for each in his] == ["Let me in", "Four."]


async def test_second_run_of_a_conversation_waits_or_is_refused() -> None:  # L120
    async with serve_api(make_clerk(frames("-slow-ly|", 0.2), "Two.")) as served, connect(served) as client:
        first = (await client.post("/runs", json={"input": "1", "contextId": "talk"})).json()
        body = {"input": "2", "contextId": "talk"}
        refused = await client.post("/runs", json={**body, "whenBusy": "refuse"})
        second = (await client.post("/runs?wait=10", json=body)).json()
        assert (await client.get(f"/runs/{first['taskId']}")).json()["state"] == "completed"
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "context_busy"
    assert second["content"] == "Two."


async def test_runs_and_streams_of_a_principal_are_limited() -> None:
    limits = ServerLimits(runs=2, streams=1)
    agent = make_clerk(*[frames("-and so on", 0.01)] * 3)
    async with serve_api(agent, limits=limits) as served, connect(served) as client, connect(served, "bob-key") as bob:
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
async def test_request_refused_for_lack_of_a_stream_starts_nothing(query: str) -> None:
    accept = {"accept": "application/json" if query else "text/event-stream"}
    payment = call("pay", amount=5)
    agent = Agent(ScriptedModel(payment, frames("-and so on", 0.01)), tools=[pay], thoughts=False, name="clerk")
    async with serve_api(agent, limits=ServerLimits(streams=1)) as served, connect(served) as client:
        waiting = (await client.post("/runs?wait=10", json={"input": "Pay"})).json()
        inputs = {waiting["pending"][0]["inputId"]: True}
        working = (await client.post("/runs", json={"input": "Go on"})).json()
        async with client.stream("GET", working["events"]) as stream:
            chunks = stream.aiter_bytes()
            await anext(chunks)
            start = await client.post(f"/runs{query}", json={"input": "Go"}, headers=accept)
            answer = await client.post(
                f"/runs/{waiting['taskId']}/resume{query}", json={"inputs": inputs}, headers=accept
            )
            runs = (await client.get("/runs")).json()["runs"]
    assert start.status_code == 429
    assert answer.status_code == 429
    assert sorted(each["state"] for each in runs) == ["input-required", "working"]


async def test_started_run_is_accepted_when_another_request_takes_the_last_stream() -> None:
    agent = make_clerk(*[frames("-done|", 0.05)] * 2)
    async with serve_api(agent, limits=ServerLimits(streams=1)) as served, connect(served) as client:
        answers = await asyncio.gather(*(client.post("/runs?wait=10", json={"input": "Go"}) for _ in range(2)))
        runs = (await client.get("/runs")).json()["runs"]
    accepted = [each for each in answers if each.status_code in (200, 202)]
    assert {each.json()["taskId"] for each in accepted} == {each["taskId"] for each in runs}
    assert all(each.headers["location"].endswith(each.json()["taskId"]) for each in accepted)


async def test_drained_server_refuses_requests_and_ends_streams_with_a_notice() -> None:  # L140
    async with serve_api(make_endless()) as served, connect(served) as client:
        run = (await client.post("/runs", json={"input": "Go on"})).json()
        async with client.stream("GET", run["events"]) as stream:
            chunks = aiter(stream.aiter_text())
            text = await anext(chunks)
            draining = asyncio.create_task(served.app.drain(0.3))
            await asyncio.sleep(0.05)
            ready = await client.get("/readyz")
            late = await client.post("/runs", json={"input": "One more"})
            async for chunk in chunks:
                text += chunk
        await draining
        repeated = await client.get(run["events"])
        record = await served.runtime.log.get_record(run["taskId"])
    assert ready.status_code == 503
    assert late.status_code == 503
    assert repeated.status_code == 503
    assert int(late.headers["retry-after"]) > 0
    assert text.endswith(": the server is shutting down, reconnect with the last id\n\n")
    assert record.state == "working"


async def test_standalone_server_enters_its_runtime() -> None:
    runtime = Runtime({"clerk": make_clerk("Hello.")}, log=MemoryEventLog(), grace=0.2)
    app = api(runtime)
    async with app._app.router.lifespan_context(app._app), serve_app(app) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/runs?wait=10", json={"input": "Hi"})).json()["content"] == "Hello."
    assert not runtime.open


async def test_failing_log_is_status_503() -> None:
    from rxloop.errors import EventLogError

    class FailingLog(MemoryEventLog):
        async def list_runs(self, **options: Any) -> Any:
            raise EventLogError("the disk is gone", retryable=False)

    log = FailingLog()
    runtime = Runtime({"clerk": make_clerk("Hello.")}, log=log, grace=0.2, adopt_every=60)
    async with serve_app(api(runtime)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        answer = await client.get("/runs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "log"
    assert "disk" not in answer.text


async def test_deps_are_derived_from_the_owner_and_not_from_the_client() -> None:
    @tool
    async def whoami(ctx: RunContext[str]) -> str:
        """Return the deps."""
        return ctx.deps

    agent = Agent(
        ScriptedModel(call("whoami"), lambda request: str(request.messages[-1].text)),
        tools=[whoami],
        deps_type=str,
        thoughts=False,
        name="clerk",
    )
    options = {"deps": lambda record: record.owner}
    async with serve_api(agent, runtime=options) as served, connect(served) as client:
        run = await client.post("/runs?wait=10", json={"input": "Who?", "metadata": {"owner": "bob"}})
    assert run.json()["content"] == "ann"


async def test_thought_graph_is_served_as_json_mermaid_and_html() -> None:
    async with serve_api(make_clerk("Hello.")) as served, connect(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Hi"})).json()
        responses = [
            (await client.get(f"/runs/{run['taskId']}/graph?form={form}")) for form in ("json", "mermaid", "html")
        ]
    assert [each.status_code for each in responses] == [200, 200, 200]
    assert responses[1].text.startswith("flowchart")


async def test_error_of_the_auth_function_is_status_500() -> None:
    def fail(request: Any) -> Any:
        raise LookupError("the user table")

    async with serve_api(make_clerk("Hello."), auth=fail) as served, connect(served) as client:
        answer = await client.get("/runs")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        assert "user table" not in answer.text
        assert (await client.get("/healthz")).status_code == 200


def test_bearer_accepts_names_and_principals() -> None:
    assert callable(bearer(TOKENS))


async def test_client_may_set_only_the_allowed_model_settings() -> None:
    model = ScriptedModel("One.", "Two.")
    options: dict[str, Any] = {"settings": ("temperature", "max_tokens")}
    async with serve_api(Agent(model, name="clerk"), **options) as served, connect(served) as client:
        body = {"input": "Hi", "settings": {"temperature": 0.5, "maxTokens": 20}}
        run = await client.post("/runs?wait=10", json=body)
        refused = await client.post("/runs", json={"input": "Hi", "settings": {"seed": 7, "temperature": 0}})
        invalid = await client.post("/runs", json={"input": "Hi", "settings": {"temperature": "hot"}})
        unknown = await client.post("/runs", json={"input": "Hi", "settings": {"extraBody": {"key": "mine"}}})
    assert run.json()["state"] == "completed"
    assert model.requests[0].settings.temperature == 0.5
    assert model.requests[0].settings.max_tokens == 20
    assert refused.status_code == 422
    assert [*refused.json()["error"]["fields"]] == ["settings.seed"]
    assert invalid.status_code == 422
    assert unknown.status_code == 400
    assert len(model.requests) == 1


def test_unknown_model_settings_are_refused_at_construction() -> None:
    for invalid in (("heat",), "temperature"):
        with pytest.raises(ConfigurationError, match="settings must be names"):
            api(Runtime({"clerk": make_clerk()}, log=MemoryEventLog()), settings=invalid)


@pytest.mark.parametrize("keeps_deltas", [True, False])
async def test_record_states_whether_deltas_are_live_or_stored(keeps_deltas: bool) -> None:
    log = MemoryEventLog(keep_deltas=keeps_deltas)
    script = frames("-It -is -so.|", 0.05)
    other = Runtime({"clerk": make_clerk()}, log=log, grace=0.1, adopt_every=60)
    stream = {"accept": "application/x-ndjson"}
    async with serve_api(make_clerk(script), log=log) as served, connect(served) as client, other:
        async with serve_app(api(other)) as url, httpx.AsyncClient(base_url=url) as other_client:
            run = (await client.post("/runs", json={"input": "Hi"})).json()
            owner_stream, other_stream = await asyncio.gather(
                client.get(run["events"]), other_client.get(run["events"])
            )
            after = await client.get(run["events"])
            replayed = await client.get(f"{run['events']}?speed=1000")
            started = await client.post("/runs", json={"input": "Hi"}, headers=stream)
            record = (await other_client.get(f"/runs/{run['taskId']}")).json()
    stored = "kept" if keeps_deltas else "none"
    modes = [each.headers["rxloop-deltas"] for each in (owner_stream, other_stream, after, replayed, started)]
    assert modes == ["live", stored, stored, stored, "live"]
    assert run["deltas"] == "live"
    assert record["deltas"] == stored
    has_deltas = ["content-delta" in each.text for each in (owner_stream, other_stream, after, replayed)]
    assert has_deltas == [True, keeps_deltas, keeps_deltas, keeps_deltas]


class _SlowLog(MemoryEventLog):
    """Event log with slow reads and a callback for each read."""

    callback: Any = None

    async def list_runs(self, *args: Any, **options: Any) -> Any:
        outcome = await super().list_runs(*args, **options)
        await self._wait()
        return outcome

    async def get_record(self, task_id: str) -> Any:
        outcome = await super().get_record(task_id)
        await self._wait()
        return outcome

    async def _wait(self) -> None:
        if self.callback is not None:
            self.callback()
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("action", ["start", "fork", "answer"])
async def test_drain_during_a_request_is_status_503(action: str) -> None:
    log, draining = _SlowLog(), set[asyncio.Task[None]]()
    async with serve_api(make_clerk(), log=log) as served, connect(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Pay"})).json()
        log.callback = lambda: draining.add(asyncio.ensure_future(served.runtime.drain(0)))
        path = f"/runs/{run['taskId']}"
        refused = await {
            "start": lambda: client.post("/runs", json={"input": "Pay"}),
            "fork": lambda: client.post(f"{path}/fork", json={"at": 2}),
            "answer": lambda: client.post(f"{path}/resume", json={"inputs": {run["pending"][0]["inputId"]: True}}),
        }[action]()
        log.callback = None
        await asyncio.gather(*draining)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize("secured", [True, False])
async def test_key_sent_concurrently_starts_one_run_despite_limits(secured: bool) -> None:
    body = {"input": "Pay", "contextId": "talk", "whenBusy": "refuse"}
    options: dict[str, Any] = {} if secured else {"auth": None}
    async with serve_api(make_endless(), log=_SlowLog(), limits=ServerLimits(runs=1), **options) as served:
        async with connect(served) as client:
            headers = {"idempotency-key": "k"}
            answers = await asyncio.gather(*(client.post("/runs", json=body, headers=headers) for _ in range(5)))
            runs = (await client.get("/runs")).json()["runs"]
    assert [each.status_code for each in answers] == [202] * 5
    assert {each.json()["taskId"] for each in answers} == {each["taskId"] for each in runs}
    assert len(runs) == 1


async def test_owner_of_a_new_conversation_sees_nothing_of_a_concurrent_second_owner() -> None:
    agent = make_clerk("Hello.", "Hello.")
    async with serve_api(agent, log=_SlowLog()) as served:
        # Adapters share locks only if they share a runtime.
        async with serve_app(api(served.runtime, auth=bearer(TOKENS))) as url:
            async with connect(served) as ann, httpx.AsyncClient(base_url=url, headers=_BOB) as bob:
                first, second = await asyncio.gather(
                    ann.post("/runs", json={"input": "Hi", "contextId": "talk"}),
                    bob.post("/runs", json={"input": "Ignore her", "contextId": "talk"}),
                )
                messages: list[list[str]] = []
                for client, started in ((ann, first), (bob, second)):
                    await client.get(f"/runs/{started.json()['taskId']}?wait=10")
                    listed = (await client.get("/contexts/talk/messages")).json()["messages"]
                    messages.append([each["content"] for each in listed])
    assert messages == [["Hi", "Hello."], ["Ignore her", "Hello."]]


async def test_concurrent_runs_with_refuse_start_only_one() -> None:
    body = {"input": "Go on", "contextId": "talk", "whenBusy": "refuse"}
    async with serve_api(make_endless(), log=_SlowLog(), auth=None) as served, connect(served) as client:
        answers = await asyncio.gather(*(client.post("/runs", json=body) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [202, 409, 409, 409]


_BOB = {"authorization": "Bearer bob-key"}
