"""Runs over real HTTP: both wire formats, faults, and every window against the bytes received."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Done, Event, TextDelta
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.rebuild import rebuilt
from cyberagent.presets import build_runner, resolve
from cyberagent.providers.projections import PROJECTIONS
from tests.peers.provider_server import Call, ProviderServer, Turn

PROVIDERS = ["openai", "anthropic"]
READS = (Call(name="read_file", arguments={"path": "a.md"}, id="c1"),
         Call(name="read_file", arguments={"path": "b.md"}, id="c2"))  # fmt: skip
MISSION = [{"role": "user", "content": "Look at both files."}]


class Wire:
    """One run against a server: its store, events and trace."""

    def __init__(self, provider: str, folder: Path, server: ProviderServer, **config: Any) -> None:
        for name in ("a.md", "b.md"):
            (folder / name).write_text(f"{name} holds one line\n" * 60)
        self.server, self.store = server, InMemoryStore()
        self.events: list[Event] = []
        self.config = resolve(
            RunConfig(
                provider=provider,
                model="m-1",
                workspace=str(folder),
                provider_options={"base_url": server.url},
                **config,
            ),
            {},
        )

    async def go(self, control: ManualControl | None = None, on: Any = None, **env: str) -> Wire:
        runner = await build_runner(self.config, store=self.store, environment=env, control=control)
        try:
            async for event in runner.run(MISSION, self.config):
                self.events.append(event)
                if on is not None:
                    on(event)
        finally:
            await runner.parts.provider.aclose()
        return self

    @property
    def done(self) -> Done:
        assert isinstance(self.events[-1], Done)
        return self.events[-1]

    async def assert_windows_are_what_was_received(self) -> None:
        trace = await self.store.trace(self.done.trace)
        received = {hashlib.sha256(r.body).hexdigest() for r in self.server.requests}
        assert trace.last_call > 0
        for number in range(1, trace.last_call + 1):
            again = await rebuilt(self.store, trace.id, number, PROJECTIONS)
            assert again.holds and again.sha256 in received
        assert [r.problems for r in self.server.requests if r.problems] == []


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_parallel_calls_are_answered_and_every_window_is_what_the_server_got(
    provider: str, tmp_path: Path
):
    script = [
        Turn(text="Both at once.", reasoning="Two files.", calls=READS),
        Turn(text="One line each.", usage={"prompt": 700, "completion": 9, "cached": 512}),
    ]
    async with ProviderServer(script) as server:
        run = await Wire(provider, tmp_path, server).go()
        assert run.done.status == "completed" and run.done.answer == "One line each."
        path = await run.store.path(run.done.trace)
        assert [m.tool_call_id for m in path if m.role == "tool"] == ["c1", "c2"]
        assert "a.md holds one line" in path[2].text and "b.md holds" in path[3].text
        call = (await run.store.calls(run.done.trace, [2]))[2]
        assert call.usage is not None
        assert (call.usage.prompt, call.usage.cached) == (700, 512)
        await run.assert_windows_are_what_was_received()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "fault",
    [
        Turn(status=429, headers={"retry-after-ms": "10"}, body="slow down"),
        Turn(status=529, body="overloaded"),
        Turn(text="This half is lost because the line breaks", cut_after=2),
        Turn(text="This is not JSON any more", malformed_at=1),
    ],
    ids=["429", "529", "broken stream", "malformed event"],
)
async def test_a_passing_fault_is_retried_and_leaves_nothing_half(
    provider: str, fault: Turn, tmp_path: Path
):
    async with ProviderServer([fault, Turn(text="Whole.")]) as server:
        run = await Wire(provider, tmp_path, server).go()
        assert run.done.answer == "Whole."
        assert [m.text for m in await run.store.path(run.done.trace)][1:] == ["Whole."]
        assert [e.kind for e in run.events].count("Retry") == 1
        call = (await run.store.calls(run.done.trace, [1]))[1]
        assert (call.status, call.tries) == ("ok", 2)
        assert server.requests[0].body == server.requests[1].body
        last = [e for e in run.events if isinstance(e, TextDelta) and e.stream == "text"][-1]
        assert last.offset + len(last.text) == len("Whole.")


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_three_overloads_in_a_row_lead_to_the_fallback_model(provider: str, tmp_path: Path):
    over = Turn(status=529, body="overloaded", headers={"retry-after-ms": "1"})
    async with ProviderServer([over, over, over, Turn(text="From the other.")]) as server:
        run = await Wire(provider, tmp_path, server).go(FALLBACK_MODEL="m-2")
        assert run.done.answer == "From the other."
        assert [r.payload["model"] for r in server.requests] == ["m-1", "m-1", "m-1", "m-2"]
        calls = await run.store.calls(run.done.trace, [1, 2])
        assert [(c.model, c.status) for c in calls.values()] == [("m-1", "failed"), ("m-2", "ok")]
        await run.assert_windows_are_what_was_received()


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_stop_ends_a_request_within_a_second(provider: str, tmp_path: Path):
    slow = Turn(text="word " * 500, delay_ms=100)
    async with ProviderServer([slow]) as server:
        control, asked = ManualControl(), [0.0]

        def stop(event: Event) -> None:
            if isinstance(event, TextDelta) and not control.stop.is_set():
                asked[0] = time.monotonic()
                control.request("stop")

        run = await Wire(provider, tmp_path, server).go(control, stop)
        assert run.done.status == "stopped"
        assert time.monotonic() - asked[0] < 1
        async with asyncio.timeout(5):
            await server.requests[0].left.wait()
        assert [m.role for m in await run.store.path(run.done.trace)] == ["user"]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_refused_request_ends_the_run_with_the_providers_words(
    provider: str, tmp_path: Path
):
    refused = Turn(status=401, body='{"error": {"message": "no such key"}}')
    async with ProviderServer([refused]) as server:
        run = await Wire(provider, tmp_path, server).go()
        assert run.done.status == "failed" and "no such key" in run.done.why
        assert len(server.requests) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_window_refused_as_too_long_is_compacted_and_never_sent_again_unchanged(
    provider: str, tmp_path: Path
):
    too_long = Turn(status=400, body='{"error": {"message": "prompt is too long: 9 > 8"}}')
    script = [
        Turn(calls=READS),
        too_long,
        Turn(text="1. **Findings**: [2-4] each file holds one line."),
        Turn(text="One line each."),
    ]
    async with ProviderServer(script) as server:
        run = await Wire(provider, tmp_path, server).go()
        assert run.done.status == "completed" and run.done.answer == "One line each."
        bodies = [r.body for r in server.requests]
        assert len(set(bodies)) == len(bodies) == 4
        assert "Recovery" in [e.kind for e in run.events]
        await run.assert_windows_are_what_was_received()


async def test_a_key_is_not_sent_to_an_address_that_came_with_the_run(tmp_path: Path):
    async with ProviderServer([Turn(text="Hi.")]) as server:
        run = await Wire("openai", tmp_path, server).go(OPENAI_API_KEY="sk-secret")
        assert run.done.answer == "Hi."
        assert "authorization" not in {k.lower() for k in server.requests[0].headers}


async def test_a_run_ends_at_its_cost_limit(tmp_path: Path):
    turn = Turn(calls=READS[:1], usage={"prompt": 1_000_000, "completion": 0})
    async with ProviderServer([turn], repeat=True) as server:
        run = Wire("openai", tmp_path, server, limits=Limits(max_cost=5.0))
        options = {**run.config.provider_options, "prices": {"input": 2.0, "output": 8.0}}
        run.config = run.config.with_(provider_options=options)
        await run.go()
        # 2 dollars a call: after the third, 6 are spent.
        assert run.done.status == "failed" and "limit is $5" in run.done.why
        assert len(server.requests) == 3
