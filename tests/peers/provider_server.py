"""A model provider on loopback: real HTTP, both wire formats, a script instead of a model.

It refuses with 400 what the real ones refuse, by the checkers that know nothing of the
projections, and plays the faults that a script asks for. In tests::

    async with ProviderServer([Turn(text="Hello")]) as server:
        provider = OpenAIProvider(model="m", base_url=server.url)

As a process: ``python -m tests.peers.provider_server --port 9000 --script turns.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai

Json = Any


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of the model. ``arguments``: an object, or text that is sent as it is."""

    name: str
    arguments: Json = field(default_factory=dict)
    id: str = ""

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer, and what goes wrong with it.

    ``usage``: ``prompt`` (cached tokens included), ``completion``, ``cached``; None: none sent.
    ``status`` other than 200 answers with ``body`` and ``headers`` and no stream. Counted in
    stream events: ``cut_after`` closes the connection in the middle of the next one,
    ``hang_after`` sends nothing more, ``malformed_at`` sends half a JSON text instead.
    ``ends`` False: the stream ends in good order, but before the finish reason.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"prompt": 100, "completion": 10}
    )
    finish: str = ""
    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    cut_after: int | None = None
    hang_after: int | None = None
    malformed_at: int | None = None
    ends: bool = True

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Turn:
        calls = [Call(**call) for call in value.get("calls", ())]
        return cls(**{**value, "calls": calls})


@dataclass(eq=False)
class Received:
    """A request as it came. ``body``: the very bytes. ``left``: set once the client closed the
    connection before the answer was over."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    problems: Sequence[str] = ()
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def payload(self) -> Json:
        return json.loads(self.body)


Script = Sequence[Turn | Callable[[Json], Turn]]
"""Answers in order; a callable is given the payload and makes the answer."""


class ProviderServer:
    """Plays ``script``, one turn for each request that it does not refuse. ``repeat`` starts
    over at its end; without, what is asked beyond it is refused. ``dialect``: whose rules of
    chat completions are kept. ``api_key``: refuse requests without it."""

    def __init__(
        self,
        script: Script,
        *,
        dialect: str = "openai",
        api_key: str = "",
        repeat: bool = False,
        port: int = 0,
    ) -> None:
        self.requests: list[Received] = []
        self._script, self._repeat = list(script), repeat
        self._dialect, self._api_key, self._port = dialect, api_key, port
        self._played = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base address for providers of either wire format."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> ProviderServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def serve_forever(self) -> None:
        assert self._server is not None
        await self._server.serve_forever()

    # One connection carries one request.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._answer(await _read_request(reader), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(request)
        refusal = self._refusal(request)
        if refusal:
            status, words = refusal
            body = {"error": {"type": "invalid_request_error", "message": words}}
            await _send(writer, status, json.dumps(body))
            return
        turn = self._next(request.payload)
        if turn.status != 200:
            await _send(writer, turn.status, turn.body, turn.headers)
            return
        wire = _anthropic if request.path.endswith("/messages") else _openai
        watch = asyncio.ensure_future(_watch(reader, request.left))
        try:
            await _stream(writer, wire(turn, len(self.requests)), turn)
        finally:
            watch.cancel()

    def _refusal(self, request: Received) -> tuple[int, str] | None:
        if request.path not in ("/v1/chat/completions", "/v1/messages"):
            return 404, f"no such path: {request.path}"
        given = (request.headers.get("authorization"), request.headers.get("x-api-key"))
        if self._api_key and f"Bearer {self._api_key}" not in given and self._api_key not in given:
            return 401, "the API key is wrong or missing"
        try:
            payload = request.payload
        except ValueError:
            return 400, "the body is not JSON"
        if not isinstance(payload, dict):
            return 400, "the body is not a JSON object"
        if request.path.endswith("/messages"):
            request.problems = problems_anthropic(payload)
            if "anthropic-version" not in request.headers:
                request.problems = [*request.problems, "anthropic-version is missing"]
        else:
            request.problems = problems_openai(payload, self._dialect)
        if request.problems:
            return 400, "; ".join(request.problems)
        if self._played >= len(self._script) and not self._repeat:
            return 400, f"the script has only {len(self._script)} turns"
        return None

    def _next(self, payload: Json) -> Turn:
        turn = self._script[self._played % len(self._script)]
        self._played += 1
        return turn if isinstance(turn, Turn) else turn(payload)


# HTTP --------------------------------------------------------------------------------------


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(path, headers, body)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: str, headers: Mapping[str, str] | None = None
) -> None:
    data = body.encode()
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(data)}", "connection: close"]
    if data.startswith((b"{", b"[")):
        lines.append("content-type: application/json")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, events: Iterator[bytes], turn: Turn) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    for n, event in enumerate(events):
        if n == turn.hang_after:
            await asyncio.Event().wait()
        if n == turn.cut_after:
            half = event[: len(event) // 2]
            writer.write(f"{len(event):x}\r\n".encode() + half)
            await writer.drain()
            return
        if n == turn.malformed_at:
            event = b'data: {"half": \n\n'
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
        await asyncio.sleep(turn.delay_ms / 1_000)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _watch(reader: asyncio.StreamReader, left: asyncio.Event) -> None:
    await reader.read()
    left.set()


# Wire formats ------------------------------------------------------------------------------


def _pieces(text: str, size: int = 7) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def _openai(turn: Turn, number: int) -> Iterator[bytes]:
    def event(**fields: Json) -> bytes:
        chunk = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", **fields}
        return f"data: {json.dumps(chunk)}\n\n".encode()

    def delta(finish: str | None = None, **fields: Json) -> bytes:
        return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])

    yield delta(role="assistant", content="")
    for piece in _pieces(turn.reasoning):
        yield delta(reasoning_content=piece)
    for piece in _pieces(turn.text):
        yield delta(content=piece)
    for n, call in enumerate(turn.calls):
        head = {"name": call.name, "arguments": ""}
        first = {"index": n, "id": call.id or f"call_{number}_{n}", "type": "function"}
        yield delta(tool_calls=[{**first, "function": head}])
    longest = max((len(_pieces(c.text)) for c in turn.calls), default=0)
    for i in range(longest):  # parallel calls grow side by side: only the index tells them apart
        for n, call in enumerate(turn.calls):
            for piece in _pieces(call.text)[i : i + 1]:
                yield delta(tool_calls=[{"index": n, "function": {"arguments": piece}}])
    if not turn.ends:
        return
    yield delta(finish=turn.finish or ("tool_calls" if turn.calls else "stop"))
    if turn.usage is not None:
        prompt, completion = turn.usage.get("prompt", 0), turn.usage.get("completion", 0)
        details = {"cached_tokens": turn.usage.get("cached", 0)}
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        yield event(choices=[], usage={**usage, "prompt_tokens_details": details})
    yield b"data: [DONE]\n\n"


def _anthropic(turn: Turn, number: int) -> Iterator[bytes]:
    def event(kind: str, **fields: Json) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    usage: dict[str, int] = {}
    if turn.usage is not None:
        cached = turn.usage.get("cached", 0)
        usage = {
            "input_tokens": turn.usage.get("prompt", 0) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": 1,
        }
    message = {"id": f"msg_{number}", "role": "assistant", "content": [], "usage": usage}
    yield event("message_start", message=message)
    yield event("ping")
    for n, (block, deltas) in enumerate(_anthropic_blocks(turn, number)):
        yield event("content_block_start", index=n, content_block=block)
        for delta in deltas:
            yield event("content_block_delta", index=n, delta=delta)
        yield event("content_block_stop", index=n)
    if not turn.ends:
        return
    reason = turn.finish or ("tool_use" if turn.calls else "end_turn")
    total = {} if turn.usage is None else {"output_tokens": turn.usage.get("completion", 0)}
    yield event("message_delta", delta={"stop_reason": reason}, usage=total)
    yield event("message_stop")


def _anthropic_blocks(turn: Turn, number: int) -> Iterator[tuple[Json, list[Json]]]:
    if turn.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": p} for p in _pieces(turn.reasoning)]
        signature = {"type": "signature_delta", "signature": f"signature-{number}"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signature]
    if turn.text:
        texts = [{"type": "text_delta", "text": p} for p in _pieces(turn.text)]
        yield {"type": "text", "text": ""}, texts
    for n, call in enumerate(turn.calls):
        inputs = [{"type": "input_json_delta", "partial_json": p} for p in _pieces(call.text)]
        use = {"type": "tool_use", "id": call.id or f"toolu_{number}_{n}", "name": call.name}
        yield {**use, "input": {}}, inputs


# As a process ------------------------------------------------------------------------------


async def _main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model provider on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dialect", default="openai")
    parser.add_argument("--script", type=Path, help="JSON: a list of turns, played in a circle")
    options = parser.parse_args()
    script: list[Turn] = [Turn(text="This is a scripted answer.")]
    if options.script is not None:
        script = [Turn.from_json(turn) for turn in json.loads(options.script.read_text())]
    server = ProviderServer(script, dialect=options.dialect, repeat=True, port=options.port)
    async with server:
        print(server.url, flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
