"""Sub-agents live: what their run's watchers, and those of the runs above, are told of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.test import Client

from cyberagent.core.events import Done, StatusChanged, TextDelta
from cyberagent.core.types import text_message
from tests.traces.families import Family
from tests.traces.test_consumers import close_code, received, signed_in, socket
from traces import boardviews, consumers, live, write
from traces.below import below
from traces.management.drawing import Drawing
from traces.models import Trace
from traces.stream import follow
from traces.threads import close_connections

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]


@pytest_asyncio.fixture(autouse=True)
async def one_loop() -> AsyncIterator[None]:
    """As the web server does: what is published is sent in the loop of the consumers."""
    live.bind(asyncio.get_running_loop())
    yield
    live.bind(None)


@pytest.fixture(autouse=True)
def readers(transactional_db: None) -> Iterator[None]:
    """Streams read in threads of their own."""
    yield
    close_connections()


@sync_to_async
def family_of(owner: Any) -> Family:
    return Family(owner)


async def work(trace: str, text: str = "So.") -> int:
    """One step of a trace; its newest event."""
    message = text_message("assistant", text, source="model")
    done = await sync_to_async(write.append)(trace, [message])
    return done.trace.last_event


async def watching(trace: str, client: Client, language: str = "en") -> WebsocketCommunicator:
    """A watcher who has all that there is, and is heard of by those below."""
    after = await sync_to_async(lambda: Trace.objects.get(pk=trace).last_event)()
    listener = socket(f"/ws/runs/{trace}/?after={after}&lang={language}", client)
    connected, _ = await listener.connect()
    assert connected
    # Messages of a client are read once all of the connecting is done.
    await listener.send_to(text_data='{"lease": true}')
    assert "lease" in await received(listener)
    return listener


async def told(listener: WebsocketCommunicator, child: str, clock: int) -> list[dict[str, Any]]:
    """The lines of ``child`` up to the one of this clock; batches in between are left out."""
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["clock"] < clock:
        message = await received(listener)
        lines += [c for c in message.get("children", ()) if c["id"] == child]
    return lines


@sync_to_async
def clock_of(trace: str, child: str) -> int:
    return next(one.clock for one in below(trace) if one.id == child)


def words(line: dict[str, Any]) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", line["html"]).split())


async def test_a_step_of_a_sub_agent_is_told_to_its_run_and_to_those_above() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    inner, _ = await sync_to_async(family.delegate)(child, objective="The refunds")
    top, middle = await watching(family.root, client), await watching(child, client)
    await work(inner)
    for listener, above in ((top, family.root), (middle, child)):
        (line,) = await told(listener, inner, await clock_of(above, inner))
        assert words(line) == "Agent The refunds Live 1 step"
    # The one between has a newer line too: something happened below it.
    await work(inner)
    assert (await told(top, child, await clock_of(family.root, child)))[-1]["clock"] > 0
    for listener in (top, middle):
        await listener.disconnect()


async def test_many_steps_are_few_messages_and_the_last_one_says_all() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    listener = await watching(family.root, client)
    clock = asyncio.get_running_loop().time
    begun = clock()
    for n in range(60):
        await work(child, f"step {n}")
    lines = await told(listener, child, await clock_of(family.root, child))
    passed = clock() - begun
    assert words(lines[-1]) == "Agent The payments Live 60 steps"
    assert len(lines) <= 2 * passed + 2
    assert [line["clock"] for line in lines] == sorted({line["clock"] for line in lines})
    await listener.disconnect()


async def test_own_events_come_once_and_in_order_however_busy_those_below_are() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    listener = await watching(family.root, client)
    await listener.send_to(text_data='{"after": 0}')
    first = await received(listener)
    at, seen = first["upto"], [r["row"] for r in first["rows"]]
    for n in range(20):
        last = await work(family.root, f"own {n}")
        await work(child)
        await work(child)
    new: list[int] = []
    while at < last:
        message = await received(listener)
        if "children" in message:
            continue
        assert message["after"] == at
        at = message["upto"]
        new += [r["row"] for r in message["rows"]]
    # The call made two rows after the mission's; the child that it asked for changed the second.
    assert sorted(set(seen)) == [0, 1, 2]
    assert new == list(range(3, 23))
    await listener.disconnect()


async def test_a_sub_agent_that_comes_later_hangs_below_its_call_and_is_heard() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    listener = await watching(family.root, client)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    html = ""
    while f'data-child="{child}"' not in html:
        message = await received(listener)
        html += "".join(r["html"] for r in message.get("rows", ()))
    inner, _ = await sync_to_async(family.delegate)(child, objective="The refunds")
    await work(inner)
    lines = await told(listener, inner, await clock_of(family.root, inner))
    assert words(lines[-1]) == "Agent The refunds Live 1 step"
    await listener.disconnect()


async def test_who_comes_back_is_told_what_is_newer_than_what_they_show() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    one, _ = await sync_to_async(family.delegate)(family.root, objective="One")
    two, _ = await sync_to_async(family.delegate)(family.root, objective="Two")
    shown = {i: await clock_of(family.root, i) for i in (one, two)}
    await work(two)
    await work(two)
    listener = await watching(family.root, client)
    await listener.send_to(text_data=json.dumps({"lines": shown}))
    message = await received(listener)
    assert [c["id"] for c in message["children"]] == [two]
    assert words(message["children"][0]) == "Agent Two Live 2 steps"
    # Who shows all that there is hears nothing, and nonsense does no harm.
    now = {i: await clock_of(family.root, i) for i in (one, two)}
    await listener.send_to(text_data=json.dumps({"lines": now}))
    for nonsense in ([], "x", {"x": "y"}, {str(n): n for n in range(600)}, {one: None}):
        await listener.send_to(text_data=json.dumps({"lines": nonsense}))
    assert await listener.receive_nothing(timeout=0.8)
    await work(one)
    lines = await told(listener, one, await clock_of(family.root, one))
    assert words(lines[-1]) == "Agent One Live 1 step"
    await listener.disconnect()


async def test_text_that_a_sub_agent_writes_is_not_told_above_it() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    listener = await watching(family.root, client)
    live.publish_delta(child, TextDelta(call=1, offset=0, text="a secret of the child"))
    live.publish_delta(family.root, TextDelta(call=1, offset=0, text="I"))
    message = await received(listener)
    assert message == {"delta": {"call": 1, "offset": 0, "text": "I", "stream": "text"}}
    await listener.disconnect()


async def test_a_validators_line_becomes_its_verdict() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, call = await sync_to_async(family.delegate)(family.root, objective="The payments")
    listener = await watching(family.root, client)
    report, result, judge = await sync_to_async(family.report)(child, "failed", "No order was paid")
    lines = await told(listener, judge, await clock_of(family.root, judge))
    assert words(lines[-1]) == "Verdict: failed No order was paid"
    await sync_to_async(family.deliver)(family.root, child, call, report, result)
    lines = await told(listener, child, await clock_of(family.root, child))
    assert words(lines[-1]) == "Agent The payments Failed Completed 1 step"
    await listener.disconnect()


async def test_lines_are_made_once_for_all_who_watch_in_one_language() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    first, second = await watching(family.root, client), await watching(family.root, client)
    chinese = await watching(family.root, client, "zh-hans")
    await work(child)
    clock = await clock_of(family.root, child)
    both = [(await told(listener, child, clock))[-1] for listener in (first, second)]
    assert both[0] == both[1]
    other = (await told(chinese, child, clock))[-1]
    assert "运行中" in words(other)
    for listener in (first, second, chinese):
        await listener.disconnect()


async def test_strangers_hear_nothing_of_a_tree() -> None:
    owner, _ = await signed_in("olga")
    _, stranger = await signed_in("sam")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    for path in (f"/ws/runs/{child}/", f"/ws/runs/{family.root}/agents/"):
        assert await close_code(socket(path, stranger)) == consumers.NOT_FOUND
        assert await close_code(socket(path)) == consumers.SIGN_IN


async def test_who_signs_out_hears_nothing_more_of_those_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "ASKED_EVERY", 0.0)
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    listener = await watching(family.root, client)
    await work(child)
    await told(listener, child, await clock_of(family.root, child))
    await sync_to_async(client.logout)()
    await work(child, "a secret")
    message = await listener.receive_output(timeout=5)
    assert (message["type"], message["code"]) == ("websocket.close", consumers.SIGN_IN)


# The board -------------------------------------------------------------------------------------


async def test_the_board_comes_whole_when_something_happened_anywhere_in_the_tree() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    clock = await sync_to_async(boardviews.clock_of)(family.root)
    listener = socket(f"/ws/runs/{family.root}/agents/?clock={clock}&lang=en", client)
    await listener.connect()
    assert await listener.receive_nothing(timeout=0.5)
    inner, _ = await sync_to_async(family.delegate)(child, objective="The refunds")
    await work(inner)
    newest = await sync_to_async(boardviews.clock_of)(family.root)
    message = await received(listener)
    while message["clock"] != newest:
        message = await received(listener)
    assert set(message) == {"board", "log", "html", "clock"}
    assert f'id="agent-{inner}"' in message["board"]
    assert "Agent begins" in message["log"]
    await listener.disconnect()


async def test_who_comes_back_to_the_board_is_sent_it_only_if_it_changed() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    old = await sync_to_async(boardviews.clock_of)(family.root)
    await work(child)
    listener = socket(f"/ws/runs/{family.root}/agents/?clock={old}", client)
    await listener.connect()
    message = await received(listener)
    assert message["clock"] == await sync_to_async(boardviews.clock_of)(family.root)
    assert await listener.receive_nothing(timeout=0.3)
    await listener.disconnect()


async def test_the_board_of_a_sub_agent_tells_that_the_run_at_the_root_has_ended() -> None:
    owner, client = await signed_in("olga")
    family = await family_of(owner)
    child, _ = await sync_to_async(family.delegate)(family.root)
    inner, _ = await sync_to_async(family.delegate)(child)
    old = await sync_to_async(boardviews.clock_of)(child)
    listener = socket(f"/ws/runs/{child}/agents/?clock={old}&lang=en", client)
    await listener.connect()
    assert await listener.receive_nothing(timeout=0.5)
    await sync_to_async(family.status)(family.root, "completed")
    message = await received(listener)
    assert message["clock"] == await sync_to_async(boardviews.clock_of)(child) != old
    row = re.search(rf'<tr id="agent-{inner}".*?</tr>', message["board"], re.DOTALL)
    assert row and "nobody waits for it" in row[0]
    await listener.disconnect()


# Streams and the terminal ------------------------------------------------------------------------


async def test_a_stream_tells_how_far_sub_agents_are_and_nothing_after_the_end() -> None:
    owner, _ = await signed_in("olga")
    family = await family_of(owner)
    child, call = await sync_to_async(family.delegate)(family.root, objective="The payments")
    heard: list[dict[str, Any]] = []
    asked = False
    async for event in follow(family.root):
        if event is not None:
            heard.append(event)
            if event["event"] == "Done":
                break
        elif not asked:
            asked = True
            await work(child)
            report, result, _ = await sync_to_async(family.report)(child)
            await sync_to_async(family.deliver)(family.root, child, call, report, result)
            over = [StatusChanged(status="completed"), Done(trace=family.root, status="completed")]
            await sync_to_async(write.append)(family.root, [], over, status="completed")
    numbers = [e["number"] for e in heard if "number" in e]
    assert numbers == list(range(1, len(numbers) + 1))
    states = [e for e in heard if e["event"] == "ChildProgress" and e["child"] == child]
    assert all("number" not in e for e in states)
    assert (states[0]["status"], states[0]["steps"], states[0]["parent"]) == (
        "running", 0, family.root,
    )  # fmt: skip
    assert (states[-1]["status"], states[-1]["steps"], states[-1]["verdict"]) == (
        "completed", 2, "passed",
    )  # fmt: skip
    assert heard[-1]["event"] == "Done"


async def test_the_terminal_says_when_sub_agents_begin_and_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner, _ = await signed_in("olga")
    family = await family_of(owner)
    drawing = await sync_to_async(Drawing)(family.root)
    child, _ = await sync_to_async(family.delegate)(family.root, objective="The payments")
    inner, _ = await sync_to_async(family.explore)(child, "Which bank?")
    async for event in follow(family.root):
        if event is None:
            break
        await drawing.hear(event)
    inner_told = {
        "event": "ChildProgress", "child": inner, "parent": child, "agent": "explore",
        "mission": "Which bank?", "status": "running", "verdict": "",
    }  # fmt: skip
    await drawing.hear(inner_told)
    await drawing.hear(inner_told | {"status": "completed"})
    judged = inner_told | {"agent": "validator", "child": "judge", "status": "completed"}
    await drawing.hear(judged)
    await drawing.hear(judged | {"verdict": "failed"})
    lines = [line for line in capsys.readouterr().out.splitlines() if "↳" in line]
    assert lines == [
        f"    ↳ explorer {inner} begins: Which bank?",
        f"    ↳ agent {child} begins: The payments",
        f"    ↳ explorer {inner} ended: completed",
        "    ↳ verdict of validator judge: failed",
    ]
