"""The WebSockets: who may listen, what is told, and that nothing is missed or told twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from cyberagent.core.config import RunConfig
from cyberagent.core.events import TextDelta
from cyberagent.core.types import text_message
from tests.traces.people import person
from traces import commands, consumers, lease, live, write
from traces.models import Trace
from traces.urls import websocket_urlpatterns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]

application = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))


@pytest_asyncio.fixture(autouse=True)
async def one_loop() -> AsyncIterator[None]:
    """As the web server does: what is published is sent in the loop of the consumers."""
    live.bind(asyncio.get_running_loop())
    yield
    live.bind(None)


@sync_to_async
def signed_in(name: str, role: str = "operator") -> tuple[User, Client]:
    user = person(name, role)
    client = Client()
    client.force_login(user)
    return user, client


def socket(path: str, client: Client | None = None) -> WebsocketCommunicator:
    headers = []
    if client is not None:
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()))
    return WebsocketCommunicator(application, path, headers=headers)


@sync_to_async
def started(owner: User, **fields: Any) -> Trace:
    return commands.start(owner, "Look around", RunConfig(), **fields)


@sync_to_async
def append(trace: Trace, text: str) -> None:
    write.append(trace.pk, [text_message("assistant", text, source="model")])


async def received(listener: WebsocketCommunicator) -> dict[str, Any]:
    return json.loads(await listener.receive_from(timeout=5))


async def close_code(listener: WebsocketCommunicator) -> int:
    await listener.connect()
    message = await listener.receive_output(timeout=5)
    assert message["type"] == "websocket.close"
    return message["code"]


async def test_who_is_not_signed_in_hears_nothing() -> None:
    owner, _ = await signed_in("olga")
    trace = await started(owner)
    assert await close_code(socket(f"/ws/runs/{trace.pk}/")) == consumers.SIGN_IN
    assert await close_code(socket("/ws/runs/")) == consumers.SIGN_IN


async def test_another_ones_run_is_as_one_that_does_not_exist() -> None:
    owner, _ = await signed_in("olga")
    _, stranger = await signed_in("sam")
    trace = await started(owner)
    assert await close_code(socket(f"/ws/runs/{trace.pk}/", stranger)) == consumers.NOT_FOUND
    assert await close_code(socket("/ws/runs/000000000000/", stranger)) == consumers.NOT_FOUND


async def test_what_happened_meanwhile_comes_first_and_news_follow_without_a_gap() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    await append(trace, "one")
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    first = await received(listener)
    assert (first["after"], first["upto"]) == (1, 2)
    assert [r["row"] for r in first["rows"]] == [1]
    await append(trace, "two")
    await append(trace, "three")
    after, rows = first["upto"], []
    while after < 4:
        batch = await received(listener)
        assert batch["after"] == after
        after = batch["upto"]
        rows += [r["row"] for r in batch["rows"]]
    assert rows == [2, 3]
    await listener.disconnect()


async def test_who_has_all_is_told_nothing() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    assert await listener.receive_nothing(timeout=0.5)
    await listener.disconnect()


async def test_a_gap_is_asked_for_again() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    await append(trace, "one")
    listener = socket(f"/ws/runs/{trace.pk}/?after=2", client)
    await listener.connect()
    await listener.send_to(text_data='{"after": 0}')
    assert [r["row"] for r in (await received(listener))["rows"]] == [0, 1]
    for nonsense in ("{", "[]", '{"after": "x"}', '{"after": -1}', "[" * 10_000):
        await listener.send_to(text_data=nonsense)
    await append(trace, "two")
    assert (await received(listener))["upto"] == 3
    await listener.disconnect()


async def test_after_a_long_absence_the_tree_is_to_be_loaded_anew() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    many = [text_message("assistant", f"{n}", source="model") for n in range(600)]
    await sync_to_async(write.append)(trace.pk, many)
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    batch = await received(listener)
    assert batch["reload"] is True
    assert batch["upto"] == 601
    assert "rows" not in batch
    await listener.disconnect()


async def test_pieces_of_an_answer_come_with_offsets_and_the_text_so_far_on_joining() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    await sync_to_async(Trace.objects.filter(pk=trace.pk).update)(last_call=1)
    live.publish_delta(trace.pk, TextDelta(call=1, offset=0, text="I beg"))
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    so_far = (await received(listener))["delta"]
    assert (so_far["offset"], so_far["text"]) == (0, "I beg")
    live.publish_delta(trace.pk, TextDelta(call=1, offset=5, text="in "))
    live.publish_delta(trace.pk, TextDelta(call=1, offset=8, text="here"))
    text, offset = "", 5
    while offset < 12:
        delta = (await received(listener))["delta"]
        assert delta["offset"] == offset
        text += delta["text"]
        offset += len(delta["text"])
    assert text == "in here"
    await listener.disconnect()


async def test_a_watcher_is_told_whether_the_runs_owner_is_alive() -> None:
    owner, client = await signed_in("olga")
    trace = await started(owner)
    assert await sync_to_async(lease.take)(trace.pk, "worker-1")
    await sync_to_async(Trace.objects.filter(pk=trace.pk).update)(status="running")
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    await listener.send_to(text_data='{"lease": true}')
    assert (await received(listener))["gone"] is False
    assert await sync_to_async(lease.beat)(trace.pk, "worker-1", seconds=-1)
    await listener.send_to(text_data='{"lease": true}')
    assert (await received(listener))["gone"] is True
    await listener.disconnect()


async def test_who_signs_out_hears_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ASKED_EVERY", 0.0)
    owner, client = await signed_in("olga")
    trace = await started(owner)
    listener = socket(f"/ws/runs/{trace.pk}/?after=1", client)
    await listener.connect()
    await append(trace, "one")
    assert (await received(listener))["upto"] == 2
    await sync_to_async(client.logout)()
    await append(trace, "a secret")
    message = await listener.receive_output(timeout=5)
    assert (message["type"], message["code"]) == ("websocket.close", consumers.SIGN_IN)


async def test_the_list_tells_of_visible_runs_only() -> None:
    owner, client = await signed_in("olga")
    other, _ = await signed_in("sam")
    listener = socket("/ws/runs/", client)
    await listener.connect()
    assert await listener.receive_nothing(timeout=0.2)
    theirs, mine = await started(other), await started(owner)
    shared = await started(other, shared=True)
    seen: set[str] = set()
    while len(seen) < 2:
        seen |= {row["id"] for row in (await received(listener))["rows"]}
    assert seen == {mine.pk, shared.pk}
    assert theirs.pk not in seen
    await listener.disconnect()
