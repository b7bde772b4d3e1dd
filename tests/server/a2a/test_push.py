"""Reliable delivery of webhooks, and protection of private addresses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
import trustme
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rxloop import Agent, SqliteEventLog, tool
from rxloop.errors import ConfigurationError
from rxloop.server import PushOptions, ServerLimits
from rxloop.server.a2a import webhook_addresses as addresses
from rxloop.server.a2a.push import PUSH_CONTEXT_ID, Push
from rxloop.server.a2a.webhook_addresses import UnsafeAddress, post, resolve_addresses
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app
from support.clients.a2a import message_request, read_task, serve_a2a
from support.tcp_server import serve_connections

LOCAL = PushOptions(allow_private=True, retry_delay=0.01, scan_interval=0.1)


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay], thoughts=False, name="clerk")


class Webhook:
    """Webhook that records notifications, with configurable failures."""

    def __init__(self) -> None:
        self.url = ""
        self.notifications: list[tuple[dict[str, str], Any]] = []
        self.fails: list[int] = []
        self.tries = 0
        self._news = asyncio.Condition()

    async def receive(self, request: Request) -> Response:
        body = await request.json()
        self.tries += 1
        if self.fails:
            return Response(status_code=self.fails.pop(0))
        async with self._news:
            self.notifications.append((dict(request.headers), body))
            self._news.notify_all()
        return Response()

    @property
    def states(self) -> list[str]:
        updates = [body.get("task") or body.get("statusUpdate") for _, body in self.notifications]
        return [each["status"]["state"][11:] for each in updates if each]

    async def wait_for(self, state: str) -> None:
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(lambda: state in self.states)


@contextlib.asynccontextmanager
async def serve_webhook() -> AsyncGenerator[Webhook]:
    webhook = Webhook()
    elsewhere = Route("/elsewhere", lambda request: RedirectResponse("/hook"), methods=["POST"])
    async with serve_app(Starlette(routes=[Route("/hook", webhook.receive, methods=["POST"]), elsewhere])) as url:
        webhook.url = f"{url}/hook"
        yield webhook


def make_config(url: str, **fields: Any) -> pb.TaskPushNotificationConfig:
    return pb.TaskPushNotificationConfig(url=url, **fields)


async def test_client_for_webhooks_is_created_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, create = list[int](), Push._create_client

    def watch(webhooks: Push) -> httpx.AsyncClient:
        threads.append(threading.get_ident())
        return create(webhooks)

    monkeypatch.setattr(Push, "_create_client", watch)
    async with serve_a2a(make_clerk()) as served:
        for _ in range(2):
            assert "result" in (await served.rpc("ListTasks", {})).json()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_webhook_gets_all_updates_of_a_task_with_its_token() -> None:
    async with (
        serve_webhook() as webhook,
        serve_a2a(make_clerk(call("pay", amount=5), "Paid."), push=LOCAL) as served,
    ):
        auth = pb.AuthenticationInfo(scheme="Bearer", credentials="secret")
        config = make_config(webhook.url, token="of-ann", authentication=auth)
        sending = pb.SendMessageConfiguration(task_push_notification_config=config)
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            await webhook.wait_for("INPUT_REQUIRED")
            await read_task(client.send_message(message_request("yes", task_id=task.id)))
            await webhook.wait_for("COMPLETED")
    assert webhook.states == ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    answer = [body["artifactUpdate"] for _, body in webhook.notifications if "artifactUpdate" in body][-1]
    assert answer["artifact"]["parts"] == [{"text": "Paid."}]
    assert answer["lastChunk"] is True
    for headers, body in webhook.notifications:
        assert len(body) == 1
        assert headers["authorization"] == "Bearer secret"
        assert headers["x-a2a-notification-token"] == "of-ann"


async def test_webhooks_can_be_registered_read_and_deleted() -> None:
    async with serve_webhook() as webhook, serve_a2a(make_clerk(call("pay", amount=5)), push=LOCAL) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
            created = [
                await client.create_task_push_notification_config(make_config(webhook.url, task_id=task.id, id=name))
                for name in ("one", "two", "one")
            ]
            listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
            listed = await client.list_task_push_notification_configs(listing)
            assert [each.id for each in listed.configs] == ["one", "two"]
            query = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
            assert await client.get_task_push_notification_config(query) == created[0]
            for _ in range(2):
                forgotten = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="one")
                await client.delete_task_push_notification_config(forgotten)
            with pytest.raises(TaskNotFoundError):
                await client.get_task_push_notification_config(query)
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await webhook.wait_for("CANCELED")
    # Only updates between registration and deletion are sent.
    assert webhook.states == ["WORKING", "CANCELED"]


async def test_failed_notification_is_sent_again() -> None:
    async with serve_webhook() as webhook, serve_a2a(make_clerk("Yes."), push=LOCAL) as served:
        webhook.fails = [500, 503, 302, 404]
        sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(webhook.url))
        async with served.client(streaming=False) as client:
            await read_task(client.send_message(message_request(config=sending)))
        await webhook.wait_for("COMPLETED")
        assert webhook.states == ["SUBMITTED", "WORKING", "COMPLETED"]
        assert webhook.tries == 4 + len(webhook.notifications)


async def test_webhook_that_always_fails_is_abandoned_after_its_retries() -> None:
    options = PushOptions(allow_private=True, retry_delay=0.01, max_attempts=3)
    async with serve_webhook() as webhook, serve_a2a(make_clerk(call("pay", amount=5)), push=options) as served:
        webhook.fails = [500] * 100
        sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(webhook.url))
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            async with asyncio.timeout(5):
                listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
                while (await client.list_task_push_notification_configs(listing)).configs:
                    pass
    assert webhook.tries == 3


async def test_next_process_delivers_notifications_left_by_a_stopped_one(tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_webhook() as webhook:
        webhook.fails = [500] * 1_000
        async with serve_a2a(
            make_clerk("Yes."), push=PushOptions(allow_private=True, retry_delay=60), log=log
        ) as served:
            sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(webhook.url))
            async with served.client(streaming=False) as client:
                await read_task(client.send_message(message_request(config=sending)))
        await log.aclose()
        assert webhook.notifications == []
        webhook.fails = []
        log = SqliteEventLog(tmp_path / "runs.db")
        async with (
            serve_a2a(make_clerk(), push=LOCAL, log=log) as served,
            httpx.AsyncClient(base_url=served.url) as client,
        ):
            # Mounted adapters start deliveries with their first request.
            await client.get("/.well-known/agent-card.json")
            await webhook.wait_for("COMPLETED")
        assert webhook.states == ["SUBMITTED", "WORKING", "COMPLETED"]
        count = len(webhook.notifications)
        async with (
            serve_a2a(make_clerk(), push=LOCAL, log=log) as served,
            httpx.AsyncClient(base_url=served.url) as client,
        ):
            await client.get("/.well-known/agent-card.json")
        assert len(webhook.notifications) == count
        await log.aclose()


async def test_webhook_is_notified_by_one_of_two_processes(tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    async with serve_webhook() as webhook:
        agents = make_clerk(frames("-It -is -7 C.|", 0.05)), make_clerk()
        async with (
            serve_a2a(agents[0], push=LOCAL, log=one) as first,
            serve_a2a(agents[1], push=LOCAL, log=two) as second,
        ):
            async with httpx.AsyncClient(base_url=second.url) as client:
                await client.get("/.well-known/agent-card.json")
            async with first.client(streaming=False) as client, second.client(streaming=False) as other:
                immediate = pb.SendMessageConfiguration(return_immediately=True)
                task = await read_task(client.send_message(message_request(config=immediate)))
                await other.create_task_push_notification_config(make_config(webhook.url, task_id=task.id))
                await webhook.wait_for("COMPLETED")
                push: Any = first.app._push
                async with asyncio.timeout(5):
                    while await push._find_undelivered(task.id):
                        pass
    assert webhook.states.count("COMPLETED") == 1
    await one.aclose()
    await two.aclose()


async def test_webhook_that_is_registered_again_replaces_the_first_one() -> None:
    async with (
        serve_webhook() as first,
        serve_webhook() as second,
        serve_a2a(make_clerk(call("pay", amount=5)), push=LOCAL) as served,
    ):
        sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(first.url, id="h", token="old"))
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            await first.wait_for("INPUT_REQUIRED")
            replacement = make_config(second.url, task_id=task.id, id="h", token="new")
            await client.create_task_push_notification_config(replacement)
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await second.wait_for("CANCELED")
    assert "CANCELED" not in first.states
    assert {headers["x-a2a-notification-token"] for headers, _ in second.notifications} == {"new"}


async def test_webhook_deleted_by_another_process_gets_no_more_notifications(tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    async with serve_webhook() as webhook:
        async with (
            serve_a2a(make_clerk(call("pay", amount=5)), push=LOCAL, log=one) as first,
            serve_a2a(make_clerk(), push=LOCAL, log=two) as second,
            first.client(streaming=False) as client,
            second.client(streaming=False) as other,
        ):
            sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(webhook.url, id="h"))
            task = await read_task(client.send_message(message_request(config=sending)))
            await webhook.wait_for("INPUT_REQUIRED")
            push: Any = first.app._push
            assert push._tasks
            await other.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="h")
            )
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await asyncio.gather(*push._tasks.values())
    assert "CANCELED" not in webhook.states
    await one.aclose()
    await two.aclose()


async def test_timeout_of_a_webhook_includes_its_whole_answer() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.CancelledError):
            writer.write(b"HTTP/1.1 200 OK\r\nx: ")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    options = PushOptions(allow_private=True, timeout=0.3, max_attempts=1)
    async with (
        serve_connections(drip) as port,
        serve_a2a(make_clerk(call("pay", amount=5)), push=options) as served,
        served.client(streaming=False) as one,
    ):
        config = make_config(f"http://127.0.0.1:{port}/", id="h")
        sending = pb.SendMessageConfiguration(task_push_notification_config=config)
        task = await read_task(one.send_message(message_request(config=sending)))
        async with asyncio.timeout(5):
            listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
            while (await one.list_task_push_notification_configs(listing)).configs:
                pass


@pytest.mark.parametrize(
    "field", [{"token": "caf\u00e9"}, {"authentication": {"scheme": "B", "credentials": "\u20ac"}}]
)
async def test_token_that_is_not_a_valid_header_is_refused(field: dict[str, Any]) -> None:
    async with (
        serve_a2a(make_clerk(call("pay", amount=5)), push=LOCAL) as served,
        served.client(streaming=False) as client,
    ):
        task = await read_task(client.send_message(message_request()))
        config = make_config("http://127.0.0.1:1/", task_id=task.id, **field)
        with pytest.raises(InvalidParamsError, match="ASCII"):
            await client.create_task_push_notification_config(config)


@pytest.mark.parametrize("id", ["a\r\nERROR forged", "\x1b[2J", "\x9b2J", "a\u202eb", "a" * 4_001])
async def test_webhook_with_an_id_that_cannot_be_logged_is_refused(id: str) -> None:
    async with (
        serve_a2a(make_clerk(call("pay", amount=5)), push=LOCAL) as served,
        served.client(streaming=False) as client,
    ):
        task = await read_task(client.send_message(message_request()))
        config = make_config("http://127.0.0.1:1/", task_id=task.id, id=id)
        with pytest.raises(InvalidParamsError, match="printable"):
            await client.create_task_push_notification_config(config)


async def test_run_cannot_use_the_context_of_the_webhook_configuration() -> None:
    async with serve_a2a(make_clerk("Hi."), push=LOCAL) as served:
        with pytest.raises(ConfigurationError, match="control characters"):
            await served.runtime.start("clerk", "Hi", context_id=PUSH_CONTEXT_ID)


PRIVATE = [
    "http://127.0.0.1/",
    "http://localhost:9/",
    "http://[::1]/",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://100.64.0.1/",
    "http://0.0.0.0/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://224.0.0.1/",
    "ftp://93.184.216.34/",
    "http://user:secret@93.184.216.34/",
    "http:///x",
    "no url",
    "http://no-such-host.invalid/",
]


async def test_private_addresses_are_refused_as_webhooks() -> None:
    async with serve_a2a(make_clerk(call("pay", amount=5))) as served, served.client(streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        for url in PRIVATE:
            with pytest.raises(InvalidParamsError, match="the webhook url is not allowed"):
                await client.create_task_push_notification_config(make_config(url, task_id=task.id))
            sending = pb.SendMessageConfiguration(task_push_notification_config=make_config(url))
            with pytest.raises(InvalidParamsError):
                await read_task(client.send_message(message_request(config=sending)))
        await client.create_task_push_notification_config(make_config("https://93.184.216.34/x", task_id=task.id))
        assert len(await served.runtime.log.list_runs()) == 1


async def test_host_name_is_resolved_again_before_each_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_webhook() as webhook, httpx.AsyncClient() as client:
        port = httpx.URL(webhook.url).port
        answers = ["93.184.216.34", "127.0.0.1"]

        def resolve(host: str, port: int, **options: Any) -> Any:
            return [(2, 1, 6, "", (answers.pop(0), port))]

        monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve)
        url = f"http://rebound.example:{port}/hook"
        assert await resolve_addresses(httpx.URL(url), owner=None) == ["93.184.216.34"]
        with pytest.raises(UnsafeAddress):
            await post(client, url, b"{}", {}, owner=None, allow_private=False)
    assert webhook.tries == 0


async def test_certificate_must_match_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    heads: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")

    async def resolve_two(url: httpx.URL, **options: object) -> list[str]:
        # Connections to the first address fail.
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(addresses, "resolve_addresses", resolve_two)
    here, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("hook.example").configure_cert(here)
    authority.configure_trust(trusting)
    async with serve_connections(receive, ssl=here) as port, httpx.AsyncClient(verify=trusting) as client:
        assert await post(client, f"https://hook.example:{port}/x", b"", {}, owner=None, allow_private=False) == 204
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await post(client, f"https://another.example:{port}/x", b"", {}, owner=None, allow_private=False)
    [head] = heads
    assert f"host: hook.example:{port}".encode() in head.lower()


async def test_redirect_is_not_followed() -> None:
    async with serve_webhook() as webhook, httpx.AsyncClient(follow_redirects=True) as client:
        url = webhook.url.replace("hook", "elsewhere")
        assert await post(client, url, b"{}", {}, owner=None, allow_private=True) == 307
    assert webhook.tries == 0


async def test_server_without_webhooks_reports_them_as_unsupported() -> None:
    async with serve_a2a(make_clerk("Yes."), push=False) as served, served.client(streaming=False) as client:
        assert not served.app.card.capabilities.push_notifications
        task = await read_task(client.send_message(message_request()))
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(make_config("https://93.184.216.34/", task_id=task.id))


async def test_webhooks_of_unfinished_tasks_are_limited_per_principal() -> None:
    clerk = make_clerk(*[call("pay", amount=5)] * 3)
    limits = ServerLimits(webhooks=2)
    async with serve_webhook() as webhook, serve_a2a(clerk, push=LOCAL, limits=limits) as served:
        config = pb.SendMessageConfiguration(task_push_notification_config=make_config(webhook.url))
        async with served.client(streaming=False) as client:
            tasks = [await read_task(client.send_message(message_request(config=config))) for _ in range(2)]
            with pytest.raises(Exception, match="429"):
                await read_task(client.send_message(message_request(config=config)))
            # The refused request has not started a run.
            assert len(await served.runtime.log.list_runs()) == 2
            await client.cancel_task(pb.CancelTaskRequest(id=tasks[0].id))
            await webhook.wait_for("CANCELED")
            while True:
                with contextlib.suppress(Exception):
                    await read_task(client.send_message(message_request(config=config)))
                    break
                await asyncio.sleep(0.01)
