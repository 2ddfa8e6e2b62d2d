"""One model call: build the window, record it, send it, store what came back.

Source: docs/windows.md, docs/running.md.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import (
    CyberAgentError,
    PayloadRefused,
    ProviderError,
    WindowTooLarge,
)
from cyberagent.core.events import (
    CallFailed,
    Event,
    Injected,
    Recovery,
    Retry,
    TextDelta,
    Thought,
    UsageReported,
)
from cyberagent.core.guards import reserve
from cyberagent.core.injection import framework_calls
from cyberagent.core.lane import Lane
from cyberagent.core.measure import composition
from cyberagent.core.parts import Parts, Writer
from cyberagent.core.ports import Answer, CallEnd, Control, Delta, ModelRequest, Provider
from cyberagent.core.recovery import UseFallback, retrying
from cyberagent.core.state import RunState
from cyberagent.core.streams import Coalescer, Stopped, watched
from cyberagent.core.types import (
    CallRecord,
    Message,
    ToolCall,
    Usage,
    canonical_json,
    sha256,
)
from cyberagent.core.window import Window

PAYLOAD_OPTIONS = ("reasoning_effort", "thinking", "enable_thinking")
"""Provider options that shape the payload; the others (address, speed …) do not."""


@dataclass(slots=True)
class Outcome:
    """How one model call ended; no answer: ask again, with the fallback model."""

    answer: Answer | None = None
    message: Message | None = None
    cost: float | None = None


@dataclass(slots=True)
class _Call:
    """A call on its way: its record, its bytes, its times in milliseconds."""

    record: CallRecord
    body: bytes
    started: tuple[Event, ...]
    lane: Lane | None = None
    start: float = field(default_factory=time.monotonic)
    first_ms: int | None = None
    tries: int = 1

    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self.start) * 1000)

    def first_token(self) -> None:
        if self.first_ms is None:
            self.first_ms = self.elapsed_ms()


class Asking:
    """Asks the model of one run; changes to the fallback model when it must."""

    def __init__(self, parts: Parts, control: Control, write: Writer) -> None:
        self._parts, self._control, self._write = parts, control, write
        self._provider: Provider = parts.provider

    async def ask(
        self, state: RunState, outcome: Outcome, lane: Lane | None = None
    ) -> AsyncGenerator[Event, None]:
        """One call on the main path or on ``lane``, retried as the policy says; its answer is
        stored and put in ``outcome``. Raises ProviderError, WindowTooLarge, Stopped, after the
        call's end was stored."""
        call = await self._record(state, lane)
        for event in call.started:
            yield event
        coalescer = Coalescer(call.record.number)
        retried: list[Event] = []
        try:
            async for item in watched(
                self._stream(state, call, coalescer, retried), coalescer, self._control.stop
            ):
                for event in retried:
                    yield event
                retried.clear()
                if isinstance(item, TextDelta):
                    call.first_token()
                    yield item
                elif isinstance(item, UseFallback):
                    for event in await self._use_fallback(state, call, item.error):
                        yield event
                else:
                    for event in await self._store_answer(state, call, item, outcome):
                        yield event
        except (ProviderError, Stopped) as error:
            for event in retried + await self._failed(state, call, error):
                yield event
            raise

    # Before ----------------------------------------------------------------------------------

    def window(self, state: RunState, lane: Lane | None = None) -> Window:
        """The window of the next call."""
        config = state.config
        options = {k: config.provider_options.get(k) for k in PAYLOAD_OPTIONS}
        params = {
            **self._provider.params,
            "temperature": config.temperature,
            "max_output_tokens": config.max_output_tokens,
            "tool_choice": "none" if (lane.final if lane else state.final_asked) else None,
            **options,
        }
        return Window(
            system=state.system_prompt,
            items=tuple(lane.items if lane else state.history),
            tools=self._parts.tools.schemas(),
            params={k: v for k, v in params.items() if v is not None},
        )

    async def _record(self, state: RunState, lane: Lane | None) -> _Call:
        """Record the next call's window and store it; the bytes are what will be sent."""
        provider, counter = self._provider, self._parts.counter
        state.model = str(provider.params.get("model", ""))
        window = self.window(state, lane)
        payload = provider.project(window)
        if broken := provider.problems(payload):
            raise PayloadRefused(f"our own check refused the window: {broken[0]}")
        body = canonical_json(payload)
        kinds = composition(window, counter)
        size = sum(kinds.values())
        _check_size(state.config, ceil(size * state.calibration.for_model(state.model)))
        number = state.trace.last_call + 1
        recorded = state.recorder.record(number, window)
        record = CallRecord(
            number=number,
            provider=provider.name,
            model=str(window.params.get("model", "")),
            projection=provider.projection,
            manifest=recorded.manifest,
            sha256=sha256(body),
            estimated_tokens=size,
            exact=counter.exact,
            composition=kinds,
            branch_id=lane.branch_id if lane else "",
            after_sequence=lane.head if lane else state.trace.head_sequence,
        )
        stored = await self._parts.store.start_call(state.trace.id, record, recorded.blobs)
        state.trace = stored.trace
        return _Call(record, body, stored.events, lane)

    # The wire --------------------------------------------------------------------------------

    def _stream(
        self, state: RunState, call: _Call, coalescer: Coalescer, retried: list[Event]
    ) -> AsyncGenerator[Delta | Answer | UseFallback, None]:
        request = ModelRequest(
            payload=call.body,
            trace_id=state.trace.id,
            call=call.record.number,
            answers_before=call.lane.answers if call.lane else state.answers,
            branch_type=call.lane.branch_type if call.lane else "",
        )
        provider = self._provider
        return retrying(
            lambda _: provider.stream(request),
            policy=self._parts.retry,
            stop=self._control.stop,
            key=f"{state.trace.id}:{call.record.number}",
            on_retry=partial(self._retried, state, call, coalescer, retried),
        )

    async def _retried(
        self,
        state: RunState,
        call: _Call,
        coalescer: Coalescer,
        retried: list[Event],
        attempt: int,
        delay_ms: int,
        error: ProviderError,
    ) -> None:
        """Nothing of the failed try is kept, and the next one starts at offset 0."""
        coalescer.restart()
        call.tries, call.first_ms = attempt, None
        event = Retry(
            call=call.record.number,
            attempt=attempt,
            delay_ms=delay_ms,
            error=str(error),
            error_class=type(error).__name__,
        )
        retried += await self._write(state, [], [event])

    # After -----------------------------------------------------------------------------------

    async def _store_answer(
        self, state: RunState, call: _Call, answer: Answer, outcome: Outcome
    ) -> list[Event]:
        """The answer, the framework's own calls in its batch, and the call's end: one commit."""
        added, injected = self._injections(state, answer, call.lane)
        usage, elapsed = answer.usage, call.elapsed_ms()
        cost = self._provider.cost(usage) if usage else None
        message = Message(
            role="assistant",
            parts=(*answer.parts, *added),
            source="model",
            usage=usage,
            duration_ms=elapsed,
            metadata={
                "call": call.record.number,
                "model": answer.model or call.record.model,
                **({"cost": cost} if cost is not None else {}),
            },
        )
        end = CallEnd(
            number=call.record.number,
            status="ok",
            message=-1,
            usage=usage,
            finish_reason=answer.finish_reason,
            first_token_ms=call.first_ms,
            duration_ms=elapsed,
            tries=call.tries,
            cost=cost,
        )
        events = [
            *(Thought(text=r.text, message=-1) for r in message.reasoning if r.text),
            UsageReported(
                call=call.record.number,
                prompt=usage.prompt if usage else None,
                completion=usage.completion if usage else None,
                cached=usage.cached if usage else None,
                reasoning=usage.reasoning if usage else None,
                cost=cost,
                duration_ms=elapsed,
                message=-1,
            ),
            *injected,
        ]
        stored = await self._write(state, [message], events, call=end, lane=call.lane)
        history = call.lane.items if call.lane else state.history
        outcome.answer, outcome.message, outcome.cost = answer, history[-1].message, cost
        self._calibrate(state, call.record, usage)
        return stored

    def _injections(
        self, state: RunState, answer: Answer, lane: Lane | None
    ) -> tuple[list[ToolCall], list[Injected]]:
        """Nothing is injected in a side branch, nor on the turn right after a compaction."""
        if lane is not None or state.just_compacted:
            return [], []
        offered = [name for name, _ in self._parts.tools.index()]
        return framework_calls(state, answer.parts, offered)

    @staticmethod
    def _calibrate(state: RunState, record: CallRecord, usage: Usage | None) -> None:
        reported = usage.prompt if usage else None
        state.calibration = state.calibration.after(record.estimated_tokens, reported, record.model)

    async def _failed(self, state: RunState, call: _Call, error: CyberAgentError) -> list[Event]:
        failed = CallFailed(
            call=call.record.number, error=str(error), error_class=type(error).__name__
        )
        end = CallEnd(
            number=call.record.number,
            status="cancelled" if isinstance(error, Stopped) else "failed",
            duration_ms=call.elapsed_ms(),
            tries=call.tries,
            error=str(error),
        )
        return await self._write(state, [], [failed], call=end)

    async def _use_fallback(
        self, state: RunState, call: _Call, error: ProviderError
    ) -> list[Event]:
        """Go on with the fallback model: its window is a call of its own."""
        if self._parts.fallback is None:
            raise error
        events = await self._failed(state, call, error)
        self._provider = self._parts.fallback
        state.model = str(self._provider.params.get("model", ""))
        step = Recovery(step=f"fallback model {state.model}", why=str(error))
        return events + await self._write(state, [], [step])


def _check_size(config: RunConfig, size: int) -> None:
    """Refuse a window that cannot fit beside the room that its answer needs."""
    if config.context_window is None:
        return
    limit = config.context_window - reserve(config.context_window, config.max_output_tokens)
    if size > limit:
        raise WindowTooLarge(size, limit)
