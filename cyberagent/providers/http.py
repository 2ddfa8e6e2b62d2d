"""One endpoint over httpx: post bytes, read server-sent events, name what goes wrong.
Source: docs/providers.md, "Streams"."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import httpx

from cyberagent.core.errors import ConnectionBroken, InvalidConfig, ProviderTimeout
from cyberagent.providers.faults import fault
from cyberagent.providers.shapes import as_dict, as_str, parse_json

CONNECT_SECONDS = 15.0
LARGEST_EVENT = 32 * 1024 * 1024
LARGEST_ERROR = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    data: str


class EventDecoder:
    """Server-sent events from bytes, cut anywhere. Only CR and LF end a line: text may hold
    other characters that Unicode calls line breaks."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Events that are complete now. Raises ValueError for broken UTF-8 and for an event of
        more than LARGEST_EVENT bytes."""
        lines = (self._rest + chunk).splitlines(keepends=True)
        # A CR at the very end may be half of a CRLF.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) + self._size > LARGEST_EVENT:
            raise ValueError("an event is too large")
        return [e for line in lines if (e := self._line(line.rstrip(b"\r\n").decode()))]

    def close(self) -> list[ServerEvent]:
        """What the end of the stream completes: an event that lacks only its blank line."""
        return self.feed(b"\n\n")

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._name, "\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = line.removeprefix("\ufeff").partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
            self._size += len(value)
        return None


class Endpoint:
    """Where a provider is reached, with its connections.

    ``timeout``: seconds without a byte before it counts as gone. ``secret`` is kept out of every
    error. Connections open at the first request and close with :meth:`aclose`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        secret: str = "",
        timeout: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not all("!" <= c <= "~" for c in secret):
            raise InvalidConfig("the API key holds characters that no key has")
        _check_address(base_url)
        self.secret = secret
        self._base = base_url.rstrip("/")
        self._headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
        self._headers |= headers
        self._timeout = httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS))
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    async def events(self, path: str, body: bytes) -> AsyncGenerator[ServerEvent, None]:
        """Post ``body`` as it is and yield the events of the answer. Closing this generator
        closes the connection. Raises a ProviderError, and nothing else."""
        try:
            client = self._opened()
            request = client.build_request(
                "POST", self._base + path, content=body, headers=self._headers
            )
            response = await client.send(request, stream=True)
            try:
                await self._refuse_errors(response)
                decoder = EventDecoder()
                async for chunk in response.aiter_bytes():
                    for event in decoder.feed(chunk):
                        yield event
                for event in decoder.close():
                    yield event
            finally:
                await response.aclose()
        except httpx.TimeoutException as error:
            said = f"nothing came from the provider for too long: {_name(error)}"
            raise ProviderTimeout(said) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            said = f"the connection to the provider broke: {_name(error)}"
            raise ConnectionBroken(said) from error
        except ValueError as error:
            raise ConnectionBroken(f"the provider's stream cannot be read: {error}") from None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _refuse_errors(self, response: httpx.Response) -> None:
        """Raise what a refusal, or an answer that is no stream, says."""
        kind = response.headers.get("content-type", "")
        if response.is_success and not kind.startswith("application/json"):
            return
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > LARGEST_ERROR:
                break
        text = body[:LARGEST_ERROR].decode("utf-8", "replace")
        status = None if response.is_success else response.status_code
        raise fault(status, text, response.headers, secret=self.secret)

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            loopback = httpx.URL(self._base).host in ("127.0.0.1", "localhost", "::1")
            self._client = httpx.AsyncClient(
                timeout=self._timeout,
                transport=self._transport,
                trust_env=not loopback,  # a proxy cannot reach this machine's own loopback
                follow_redirects=False,
            )
        return self._client


def requested_model(payload: bytes) -> str:
    """The model that a payload asks for."""
    try:
        return as_str(as_dict(parse_json(payload)).get("model"))
    except ValueError:
        return ""


def _check_address(base_url: str) -> None:
    """Raises InvalidConfig for an address that nothing could be sent to."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidConfig(f"the provider's address is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidConfig(f"the provider's address must be an http(s) URL, not {base_url!r}")


def _name(error: Exception) -> str:
    return str(error) or type(error).__name__
