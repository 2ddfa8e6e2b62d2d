"""``manage.py up``, the REST API and its event stream on a real server process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.browser.server import Server, free_port

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
speed: 400
turns:
  - say: I plan.
    calls:
      - goal: {add: "Look, Write", focus: "1"}
    delay: 0.3
  - say: A long enough answer that comes in more than one piece of text, I hope.
    delay: 0.3
"""
ENDLESS = """
turns:
  - say: Thinking.
    delay: 600
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("up"))
    server.start()
    yield server
    server.stop()


def manage(server, *arguments):
    """The output of a command on the server's own data."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=server.environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def api(server):
    token = manage(server, "token", "tests").strip()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=60) as client:
        yield client


def sign_in(url):
    """Follow a sign-in link as a person does: open it, press the button. The last answer."""
    with httpx.Client(follow_redirects=True) as browser:
        page = browser.get(url)
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        if found is None:
            return page
        return browser.post(url, data={"csrfmiddlewaretoken": found[1]}, headers={"Referer": url})


# First start -------------------------------------------------------------------------------


def test_the_link_signs_in_once(server):
    assert "/sign-in/" not in str(sign_in(server.sign_in).url)
    again = sign_in(server.sign_in)
    assert "/sign-in/" in str(again.url)


def test_every_start_prints_a_version_a_folder_and_a_link(server):
    printed = "".join(server.lines)
    assert re.search(r"^CyberAgent \d+\.\d+", printed, re.M)
    assert f"Data: {server.data_dir}" in printed
    assert re.search(rf"^Sign in: {re.escape(server.url)}/sign-in/[\w-]{{40,}}/$", printed, re.M)


# The API, live -----------------------------------------------------------------------------


def start(api, script, **body):
    config = {"provider": "scripted", "provider_options": {"script": script}}
    answer = api.post("/traces", json={"mission": "Look", "config": config, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def follow(api, trace, *, last=None, **query):
    """The events of a stream until it ends: ``(id, name, data)`` each."""
    headers = {"Last-Event-ID": str(last)} if last is not None else {}
    with api.stream(
        "GET", f"/traces/{trace}/events/stream", params=query, headers=headers
    ) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        return list(parsed(answer.iter_lines()))


def parsed(lines):
    fields = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id"), fields["event"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def test_a_stream_has_every_event_once_and_in_order_and_the_text_between(api):
    trace = start(api, SCRIPT)
    events = follow(api, trace, until="done")
    numbered = [int(number) for number, _, _ in events if number]
    assert numbered == list(range(1, len(numbered) + 1))
    assert events[-1][1] == "Done"
    assert events[-1][2]["status"] == "completed"
    stored = api.get(f"/traces/{trace}/events", params={"limit": 1000}).json()["items"]
    assert [data for number, _, data in events if number] == stored
    deltas = [d for _, name, d in events if name == "TextDelta" and d["call"] == 2]
    assert "".join(d["text"] for d in deltas).startswith("A long enough answer")


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_stream_goes_on_after_the_clients_last_number(api, how):
    trace = start(api, SCRIPT)
    all_numbers = [n for n, _, _ in follow(api, trace, until="done") if n]
    options = {"last": 4} if how == "header" else {"after": 4}
    later = [n for n, _, _ in follow(api, trace, until="done", **options) if n]
    assert later == all_numbers[4:]


def test_a_run_is_stopped_over_the_api_and_says_so(api):
    trace = start(api, ENDLESS)
    with api.stream("GET", f"/traces/{trace}/events/stream", params={"until": "done"}) as answer:
        events = []
        for _, name, data in parsed(answer.iter_lines()):
            events.append((name, data.get("status")))
            if name == "CallStarted":
                given = api.post(f"/traces/{trace}/commands", json={"name": "stop"})
                assert given.status_code == 202
    assert events[-1] == ("Done", "stopped")
    [command] = api.get(f"/traces/{trace}/commands").json()["items"]
    assert (command["name"], command["by"], command["status"]) == ("stop", "admin", "applied")
    assert api.post(f"/traces/{trace}/commands", json={"name": "stop"}).status_code == 409


def test_what_is_said_to_an_ended_run_is_heard(api):
    trace = start(api, SCRIPT)
    follow(api, trace, until="done")
    said = api.post(f"/traces/{trace}/commands", json={"name": "say", "text": "And the rest?"})
    assert said.status_code == 202
    events = follow(api, trace, until="done")
    assert [name for _, name, _ in events].count("Done") == 2
    messages = api.get(f"/traces/{trace}/messages").json()["items"]
    texts = [p["text"] for m in messages if m["role"] == "user" for p in m["parts"]]
    assert texts == ["Look", "And the rest?"]


def test_windows_over_the_api_hold(api):
    trace = start(api, SCRIPT)
    follow(api, trace, until="done")
    calls = api.get(f"/traces/{trace}/calls").json()["items"]
    assert [c["number"] for c in calls] == [1, 2]
    for call in calls:
        window = api.get(f"/traces/{trace}/calls/{call['number']}/window").json()
        assert window["holds"] is True
        assert window["sha256"] == call["sha256"]
    assert api.get(f"/traces/{trace}/calls/3/window").status_code == 404


def test_providers_say_what_they_need(api):
    providers = {p["name"]: p for p in api.get("/providers").json()}
    assert {"openai", "anthropic", "scripted", "replay", "local"} <= set(providers)
    assert providers["scripted"]["usable"] is True
    assert providers["anthropic"]["usable"] is False
    assert "ANTHROPIC_API_KEY" in providers["anthropic"]["needs"]


def test_a_first_start_shows_a_live_run_and_an_import(api):
    traces = api.get("/traces").json()["items"]
    [sample] = [t for t in traces if t["origin"] != "run"]
    [demo] = [t for t in traces if t["mission"].startswith("Look through this small project")]
    assert (demo["provider"], demo["owner"]) == ("scripted", "admin")
    assert sample["steps"] > 0
    follow(api, demo["id"], until="done")
    goals = api.get(f"/traces/{demo['id']}/goals").json()["items"]
    assert "abandoned" in {g["status"] for g in goals}
    assert sum(g["status"] == "completed" for g in goals) >= 3
    assert api.get(f"/traces/{demo['id']}").json()["status"] == "completed"


# Stopping, ports, later starts -------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_clean_and_a_later_start_shows_what_is_there(tmp_path, how):
    server = Server(tmp_path).start()
    trace = json.loads(manage(server, "run", "--speed", "0", "--json").splitlines()[-1])["trace"]
    process = server.process
    process.send_signal(how)
    assert process.wait(10) == 0
    assert not [line for line in server.lines if "Traceback" in line]
    server.start()
    try:
        token = manage(server, "token", "tests").strip()
        traces = httpx.get(
            f"{server.url}/api/v1/traces", headers={"Authorization": f"Bearer {token}"}
        ).json()["items"]
    finally:
        server.stop()
    assert len(traces) == 3, "the demo, the sample and the run; nothing was added by the start"
    assert trace in {t["id"] for t in traces}


def test_a_run_that_a_stop_caught_goes_on_with_the_next_start(tmp_path):
    server = Server(tmp_path).start()
    token = manage(server, "token", "tests").strip()
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=60) as api:
            trace = start(api, SCRIPT)
            server.stop()
            server.start()
            events = follow(api, trace, until="done")
    finally:
        server.stop()
    numbers = [int(n) for n, _, _ in events if n]
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1][2]["status"] == "completed"


def up(tmp_path, *arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    return subprocess.run(
        [sys.executable, "manage.py", "up", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env=environment | {
            "CYBERAGENT_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "cyberagent.settings"
        },
    )  # fmt: skip


def test_a_port_that_was_asked_for_and_is_in_use_is_a_clear_error(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result = up(tmp_path, "--port", str(port))
    assert result.returncode == 2
    assert result.stderr == f"error: port {port} of 127.0.0.1 is in use\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "0"], "a port is from 1 to 65535"),
        (["--port", "70000"], "a port is from 1 to 65535"),
        (["--host", "no such host"], "not an address"),
        (["--host", "203.0.113.7"], "not an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_is_a_clear_error(tmp_path, arguments, words):
    result = up(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_next_free_port_is_taken_where_none_was_asked_for(monkeypatch):
    from traces.management.commands import up as command

    port = free_port()
    monkeypatch.setattr(command, "DEFAULT_PORT", port)
    assert command.choose_port("127.0.0.1", None) == port
    with closing(socket.create_server(("127.0.0.1", port))):
        assert command.choose_port("127.0.0.1", None) > port


def test_no_demo_leaves_an_empty_installation_empty(tmp_path):
    server = Server(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", str(server.port), "--no-demo"],
        cwd=ROOT, env=server.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert any("Sign in" in line for line in iter(process.stdout.readline, ""))
        token = manage(server, "token", "tests").strip()
        answer = httpx.get(
            f"{server.url}/api/v1/traces", headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.json()["items"] == []
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()
