"""What watchers hear, and the text so far."""

from __future__ import annotations

import asyncio
import logging

import pytest
from channels.layers import get_channel_layer

from cyberagent.core.events import TextDelta
from traces import live


@pytest.fixture
async def layer():
    live.bind(asyncio.get_running_loop())
    yield get_channel_layer()
    live.bind(None)


def piece(text: str, offset: int, stream: str = "text") -> TextDelta:
    return TextDelta(call=3, offset=offset, text=text, stream=stream)  # type: ignore[arg-type]


async def test_the_trace_and_the_list_hear_the_newest_number(layer):
    watcher, lister = [await layer.new_channel() for _ in range(2)]
    await layer.group_add(live.group_of("t1"), watcher)
    await layer.group_add(live.RUNS_GROUP, lister)
    await asyncio.to_thread(live.publish, "t1", 7)
    news = {"type": "trace.news", "trace": "t1", "number": 7}
    assert await layer.receive(watcher) == news
    assert await layer.receive(lister) == news


async def test_numbers_in_quick_succession_end_with_the_last(layer):
    watcher = await layer.new_channel()
    await layer.group_add(live.group_of("t2"), watcher)
    for number in range(1, 500):
        live.publish("t2", number)
    heard = [await layer.receive(watcher)]
    while heard[-1]["number"] < 499:
        heard.append(await layer.receive(watcher))
    numbers = [m["number"] for m in heard]
    assert numbers == sorted(numbers)


def test_the_text_so_far_is_kept_until_the_call_ends():
    for delta in (piece("Let me ", 0), piece("hm", 0, "reasoning"), piece("see.", 7)):
        live.publish_delta("t3", delta)
    assert live.partial("t3", 3) == {"text": "Let me see.", "reasoning": "hm"}
    live.forget("t3", 3)
    assert live.partial("t3", 3) is None


def test_a_try_that_begins_anew_replaces_what_was_written():
    live.publish_delta("t4", piece("Half an answ", 0))
    live.publish_delta("t4", piece("Whole", 0))
    assert live.partial("t4", 3) == {"text": "Whole", "reasoning": ""}


def test_lone_surrogates_of_a_model_do_not_reach_the_wire():
    live.publish_delta("t5", piece("a\ud800b", 0))
    assert live.partial("t5", 3) == {"text": "a\ufffdb", "reasoning": ""}


async def test_a_layer_that_fails_is_logged_and_breaks_nothing(layer, monkeypatch, caplog):
    async def refuse(*_: object) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(layer, "group_send", refuse)
    with caplog.at_level(logging.WARNING):
        live.publish("t6", 1)
        async with asyncio.timeout(10):
            while "nobody there" not in caplog.text:
                await asyncio.sleep(0)
