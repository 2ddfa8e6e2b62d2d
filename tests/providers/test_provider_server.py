"""The tests' own provider server: it must be as strict as it says, or no test means much."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest

from cyberagent.core.types import canonical_json
from cyberagent.providers.openai import project_openai
from tests.peers.provider_server import ProviderServer, Turn
from tests.providers.windows import user, window

ROOT = Path(__file__).resolve().parents[2]
SOUND = canonical_json(project_openai(window(user("go"))))


async def post(url: str, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(url, content=body)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"messages": 5}'])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_a_body_that_is_no_payload_is_refused(path: str, body: bytes):
    async with ProviderServer([Turn(text="ok")]) as server:
        answer = await post(server.url + path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert server.requests[0].body == body


async def test_an_unknown_path_a_wrong_key_and_the_end_of_the_script_are_refused():
    async with ProviderServer([Turn(text="ok")], api_key="k") as server:
        assert (await post(server.url + "/elsewhere", SOUND)).status_code == 404
        assert (await post(server.url + "/chat/completions", SOUND)).status_code == 401
    async with ProviderServer([Turn(text="ok")]) as server:
        assert (await post(server.url + "/chat/completions", SOUND)).status_code == 200
        assert "only 1 turns" in (await post(server.url + "/chat/completions", SOUND)).text


async def test_a_turn_may_be_made_from_the_payload():
    async with ProviderServer([lambda p: Turn(text=p["messages"][0]["content"])]) as server:
        answer = await post(server.url + "/chat/completions", SOUND)
    assert '"content": "go"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_it_runs_as_a_process_of_its_own(tmp_path: Path):
    script = tmp_path / "turns.json"
    script.write_text(json.dumps([{"text": "one", "calls": [{"name": "f"}]}]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.peers.provider_server", "--script", str(script),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), timeout=30)).decode().strip()
        for _ in range(2):
            answer = await post(url + "/chat/completions", SOUND)
            assert '"content": "one"' in answer.text
            assert '"name": "f"' in answer.text
    finally:
        process.terminate()
        await process.wait()
