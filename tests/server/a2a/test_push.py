"""Webhooks: told at least once, also after a restart, and never where nobody should reach."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
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
from rxloop.server import PushOptions
from rxloop.server.a2a import webhook_addresses as addresses
from rxloop.server.a2a.push import PLACE
from rxloop.server.a2a.webhook_addresses import Unsafe, is_public, post, safe_addresses
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app
from support.clients.a2a import message_request, read_task, serve_a2a

NEAR = PushOptions(private=True, pause=0.01, look_every=0.1)


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay], thoughts=False, name="clerk")


class Hook:
    """A webhook that writes down what it is told, and fails as often as it is to."""

    def __init__(self) -> None:
        self.url = ""
        self.told: list[tuple[dict[str, str], Any]] = []
        self.fails: list[int] = []
        self.tries = 0
        self._news = asyncio.Condition()

    async def hear(self, request: Request) -> Response:
        body = await request.json()
        self.tries += 1
        if self.fails:
            return Response(status_code=self.fails.pop(0))
        async with self._news:
            self.told.append((dict(request.headers), body))
            self._news.notify_all()
        return Response()

    @property
    def states(self) -> list[str]:
        updates = [body.get("task") or body.get("statusUpdate") for _, body in self.told]
        return [each["status"]["state"][11:] for each in updates if each]

    async def until(self, state: str) -> None:
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(lambda: state in self.states)


@contextlib.asynccontextmanager
async def hook() -> AsyncGenerator[Hook]:
    made = Hook()
    elsewhere = Route("/elsewhere", lambda request: RedirectResponse("/hook"), methods=["POST"])
    async with serve_app(Starlette(routes=[Route("/hook", made.hear, methods=["POST"]), elsewhere])) as url:
        made.url = f"{url}/hook"
        yield made


def config(url: str, **fields: Any) -> pb.TaskPushNotificationConfig:
    return pb.TaskPushNotificationConfig(url=url, **fields)


async def test_a_webhook_is_told_what_becomes_of_a_task_with_its_token() -> None:
    async with hook() as heard, serve_a2a(clerk(call("pay", amount=5), "Paid."), push=NEAR) as served:
        auth = pb.AuthenticationInfo(scheme="Bearer", credentials="secret")
        wanted = config(heard.url, token="of-ann", authentication=auth)
        sending = pb.SendMessageConfiguration(task_push_notification_config=wanted)
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            await heard.until("INPUT_REQUIRED")
            await read_task(client.send_message(message_request("yes", task_id=task.id)))
            await heard.until("COMPLETED")
    assert heard.states == ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    answer = [body["artifactUpdate"] for _, body in heard.told if "artifactUpdate" in body][-1]
    assert (answer["artifact"]["parts"], answer["lastChunk"]) == ([{"text": "Paid."}], True)
    for headers, body in heard.told:
        assert len(body) == 1
        assert (headers["authorization"], headers["x-a2a-notification-token"]) == ("Bearer secret", "of-ann")


async def test_webhooks_are_registered_read_and_forgotten() -> None:
    async with hook() as heard, serve_a2a(clerk(call("pay", amount=5)), push=NEAR) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
            made = [
                await client.create_task_push_notification_config(config(heard.url, task_id=task.id, id=name))
                for name in ("one", "two", "one")
            ]
            listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
            listed = await client.list_task_push_notification_configs(listing)
            assert [each.id for each in listed.configs] == ["one", "two"]
            asked = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
            assert await client.get_task_push_notification_config(asked) == made[0]
            for _ in range(2):
                forgotten = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="one")
                await client.delete_task_push_notification_config(forgotten)
            with pytest.raises(TaskNotFoundError):
                await client.get_task_push_notification_config(asked)
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await heard.until("CANCELED")
    # What happened before it was registered is not told, and the one that was forgotten is told nothing.
    assert heard.states == ["WORKING", "CANCELED"]


async def test_a_notification_that_does_not_arrive_is_sent_again() -> None:
    async with hook() as heard, serve_a2a(clerk("Yes."), push=NEAR) as served:
        heard.fails = [500, 503, 302, 404]
        sending = pb.SendMessageConfiguration(task_push_notification_config=config(heard.url))
        async with served.client(streaming=False) as client:
            await read_task(client.send_message(message_request(config=sending)))
        await heard.until("COMPLETED")
        assert heard.states == ["SUBMITTED", "WORKING", "COMPLETED"]
        assert heard.tries == 4 + len(heard.told)


async def test_a_webhook_that_never_answers_is_given_up() -> None:
    options = PushOptions(private=True, pause=0.01, tries=3)
    async with hook() as heard, serve_a2a(clerk(call("pay", amount=5)), push=options) as served:
        heard.fails = [500] * 100
        sending = pb.SendMessageConfiguration(task_push_notification_config=config(heard.url))
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            async with asyncio.timeout(5):
                listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
                while (await client.list_task_push_notification_configs(listing)).configs:
                    pass
    assert heard.tries == 3


async def test_what_a_process_leaves_the_next_one_tells(tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with hook() as heard:
        heard.fails = [500] * 1_000
        async with serve_a2a(clerk("Yes."), push=PushOptions(private=True, pause=60), log=log) as served:
            sending = pb.SendMessageConfiguration(task_push_notification_config=config(heard.url))
            async with served.client(streaming=False) as client:
                await read_task(client.send_message(message_request(config=sending)))
        await log.aclose()
        assert heard.told == []
        heard.fails = []
        log = SqliteEventLog(tmp_path / "runs.db")
        async with serve_a2a(clerk(), push=NEAR, log=log) as served, httpx.AsyncClient(base_url=served.url) as client:
            # Mounted, it begins with the first request.
            await client.get("/.well-known/agent-card.json")
            await heard.until("COMPLETED")
        assert heard.states == ["SUBMITTED", "WORKING", "COMPLETED"]
        count = len(heard.told)
        async with serve_a2a(clerk(), push=NEAR, log=log) as served, httpx.AsyncClient(base_url=served.url) as client:
            await client.get("/.well-known/agent-card.json")
        assert len(heard.told) == count
        await log.aclose()


async def test_a_webhook_of_another_process_is_told_by_one_of_them(tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    async with hook() as heard:
        agents = clerk(frames("-It -is -7 C.|", 0.05)), clerk()
        async with (
            serve_a2a(agents[0], push=NEAR, log=one) as first,
            serve_a2a(agents[1], push=NEAR, log=two) as second,
        ):
            async with httpx.AsyncClient(base_url=second.url) as client:
                await client.get("/.well-known/agent-card.json")
            async with first.client(streaming=False) as client, second.client(streaming=False) as other:
                waits = pb.SendMessageConfiguration(return_immediately=True)
                task = await read_task(client.send_message(message_request(config=waits)))
                await other.create_task_push_notification_config(config(heard.url, task_id=task.id))
                await heard.until("COMPLETED")
                push: Any = first.app._push
                async with asyncio.timeout(5):
                    while await push._left(task.id):
                        pass
    assert heard.states.count("COMPLETED") == 1
    await one.aclose()
    await two.aclose()


async def test_a_webhook_that_is_registered_anew_is_told_there_alone() -> None:
    async with hook() as before, hook() as now, serve_a2a(clerk(call("pay", amount=5)), push=NEAR) as served:
        sending = pb.SendMessageConfiguration(task_push_notification_config=config(before.url, id="h", token="old"))
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request(config=sending)))
            await before.until("INPUT_REQUIRED")
            anew = config(now.url, task_id=task.id, id="h", token="new")
            await client.create_task_push_notification_config(anew)
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await now.until("CANCELED")
    assert "CANCELED" not in before.states
    assert {headers["x-a2a-notification-token"] for headers, _ in now.told} == {"new"}


async def test_a_webhook_that_another_process_forgets_is_told_nothing_more(tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    async with hook() as heard:
        async with (
            serve_a2a(clerk(call("pay", amount=5)), push=NEAR, log=one) as first,
            serve_a2a(clerk(), push=NEAR, log=two) as second,
            first.client(streaming=False) as client,
            second.client(streaming=False) as other,
        ):
            sending = pb.SendMessageConfiguration(task_push_notification_config=config(heard.url, id="h"))
            task = await read_task(client.send_message(message_request(config=sending)))
            await heard.until("INPUT_REQUIRED")
            push: Any = first.app._push
            assert push._tasks
            await other.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="h")
            )
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            await asyncio.gather(*push._tasks.values())
    assert "CANCELED" not in heard.states
    await one.aclose()
    await two.aclose()


async def test_a_webhook_has_one_timeout_for_all_of_its_answer() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            writer.write(b"HTTP/1.1 200 OK\r\nx: ")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    options = PushOptions(private=True, timeout=0.3, tries=1)
    async with serve_a2a(clerk(call("pay", amount=5)), push=options) as served, served.client(streaming=False) as one:
        sending = pb.SendMessageConfiguration(task_push_notification_config=config(url, id="h"))
        task = await read_task(one.send_message(message_request(config=sending)))
        async with asyncio.timeout(5):
            listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
            while (await one.list_task_push_notification_configs(listing)).configs:
                pass
    server.close()


@pytest.mark.parametrize(
    "field", [{"token": "caf\u00e9"}, {"authentication": {"scheme": "B", "credentials": "\u20ac"}}]
)
async def test_what_no_header_can_hold_is_refused(field: dict[str, Any]) -> None:
    async with serve_a2a(clerk(call("pay", amount=5)), push=NEAR) as served, served.client(streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        wanted = config("http://127.0.0.1:1/", task_id=task.id, **field)
        with pytest.raises(InvalidParamsError, match="ASCII"):
            await client.create_task_push_notification_config(wanted)


async def test_no_run_can_be_where_the_webhooks_are_kept() -> None:
    async with serve_a2a(clerk("Hi."), push=NEAR) as served:
        with pytest.raises(ConfigurationError, match="control characters"):
            await served.runtime.start("clerk", "Hi", context_id=PLACE)


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


async def test_no_webhook_leads_into_this_network() -> None:
    async with serve_a2a(clerk(call("pay", amount=5))) as served, served.client(streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        for url in PRIVATE:
            with pytest.raises(InvalidParamsError, match="the url of the webhook cannot be used"):
                await client.create_task_push_notification_config(config(url, task_id=task.id))
            sending = pb.SendMessageConfiguration(task_push_notification_config=config(url))
            with pytest.raises(InvalidParamsError):
                await read_task(client.send_message(message_request(config=sending)))
        await client.create_task_push_notification_config(config("https://93.184.216.34/x", task_id=task.id))
        assert len(await served.runtime.log.list_runs()) == 1


async def test_a_name_that_stands_for_another_address_later_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hook() as heard, httpx.AsyncClient() as client:
        port = httpx.URL(heard.url).port
        answers = ["93.184.216.34", "127.0.0.1"]

        async def resolve(host: str, port: int, **options: Any) -> Any:
            return [(2, 1, 6, "", (answers.pop(0), port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        url = f"http://rebound.example:{port}/hook"
        assert await safe_addresses(httpx.URL(url)) == ["93.184.216.34"]
        with pytest.raises(Unsafe):
            await post(client, url, b"{}", {}, anywhere=False)
    assert heard.tries == 0


async def test_the_certificate_has_to_be_that_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    heads: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()

    async def found(url: httpx.URL) -> list[str]:
        # The first one takes no connections.
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(addresses, "safe_addresses", found)
    here, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("hook.example").configure_cert(here)
    authority.configure_trust(trusting)
    server = await asyncio.start_server(hear, "127.0.0.1", 0, ssl=here)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(verify=trusting) as client:
        assert await post(client, f"https://hook.example:{port}/x", b"", {}, anywhere=False) == 204
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await post(client, f"https://another.example:{port}/x", b"", {}, anywhere=False)
    [head] = heads
    assert f"host: hook.example:{port}".encode() in head.lower()


async def test_a_redirect_is_not_followed() -> None:
    async with hook() as heard, httpx.AsyncClient(follow_redirects=True) as client:
        assert await post(client, heard.url.replace("hook", "elsewhere"), b"{}", {}, anywhere=True) == 307
    assert heard.tries == 0


def test_addresses_that_are_not_public_are_known() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1::1")
    for address in (
        "fe80::1%eth0",
        "fd00::1",
        "::",
        "192.168.1.1",
        "198.18.0.1",
        "255.255.255.255",
        "fec0::1",
        "nonsense",
    ):
        assert not is_public(address), address


async def test_without_webhooks_the_door_says_so() -> None:
    async with serve_a2a(clerk("Yes."), push=False) as served, served.client(streaming=False) as client:
        assert not served.app.card.capabilities.push_notifications
        task = await read_task(client.send_message(message_request()))
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(config("https://93.184.216.34/", task_id=task.id))
