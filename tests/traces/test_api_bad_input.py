"""Bad input to the REST API: a clear error, and nothing half-written."""

import pytest

from tests.traces.people import Api, conversation, person, stored_trace
from traces.models import Branch, Command, Event, Message, Trace

pytestmark = pytest.mark.django_db

DEEP = b'{"mission": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.fixture
def ann():
    return person("ann", "operator")


@pytest.fixture
def api(ann):
    return Api(ann)


def counts():
    return [m.objects.count() for m in (Trace, Message, Event, Command, Branch)]


def refused(response, status, *words):
    """A sentence, with the words that tell what is wrong; never a page or a traceback."""
    assert response.status_code == status, response.content
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert "Traceback" not in detail
    for word in words:
        assert word in detail
    return True


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 422, ["body"]),
        (b"{", 400, ["not JSON"]),
        (b"\xff\xfe\x00", 400, ["not JSON"]),
        (DEEP, 400, ["nested too deeply"]),
        (b'{"mission": "x", "config": {"temperature": NaN}}', 400, ["NaN is not JSON"]),
        (b'{"mission": "x", "config": {"temperature": -Infinity}}', 400, ["-Infinity is not JSON"]),
        (b"[]", 422, []),
        (b'"x"', 422, []),
        (b"{}", 422, ["mission"]),
        (b'{"mission": null}', 422, ["mission"]),
        (b'{"mission": ["x"]}', 422, ["mission"]),
        (b'{"mission": "  \\r\\n "}', 422, ["mission", "empty"]),
        (b'{"mission": "a\\u0000b"}', 422, ["mission", "NUL"]),
        (b'{"mission": "\\ud800"}', 422, ["mission"]),
        (b'{"mission": "x", "mode": "fast"}', 422, ["mode"]),
        (b'{"mission": "x", "config": {"colour": "red"}}', 422, ["colour"]),
        (b'{"mission": "x", "config": {"temperature": 9}}', 422, ["temperature"]),
        (b'{"mission": "x", "config": {"context_window": "many"}}', 422, ["context_window"]),
        (b'{"mission": "x", "config": {"preset": "../../etc/passwd"}}', 422, ["preset"]),
        (b'{"mission": "x", "config": {"provider": "<script>"}}', 422, ["provider"]),
        (b'{"mission": "x", "skills": ["no such skill"]}', 404, ["skill"]),
    ],
)  # fmt: skip
def test_a_start_that_cannot_work_starts_nothing(api, body, status, words):
    before = counts()
    assert refused(api.post("/traces", body), status, *words)
    assert counts() == before


@pytest.mark.parametrize(
    "body",
    [
        {"name": "say"},
        {"name": "say", "text": " "},
        {"name": "say", "text": "a\0b"},
        {"name": "stop", "text": "now"},
        {"name": "delete"},
        {"name": ["stop"]},
        {},
    ],
)
def test_a_command_that_makes_no_sense_is_not_stored(api, ann, body):
    trace = stored_trace(ann)
    before = counts()
    assert refused(api.post(f"/traces/{trace}/commands", body), 422)
    assert counts() == before


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"after": -1}, {"after": 2**63},
        {"after": "1e9"}, {"path": "side"}, {"path": "branch", "branch": "x" * 100},
    ],
)  # fmt: skip
def test_a_page_that_cannot_be_is_refused(api, ann, query):
    trace = stored_trace(ann)
    conversation(trace)
    assert refused(api.get(f"/traces/{trace}/messages", **query), 422)


@pytest.mark.parametrize(
    "query",
    [
        {"cursor": "x"}, {"cursor": "bm90IGEgY3Vyc29y"}, {"cursor": "é"},
        {"status": "bored"}, {"search": "a\0b"}, {"owner": "a\0"}, {"parent": "a\0"},
    ],
)  # fmt: skip
def test_a_list_asked_for_wrongly_is_refused(api, query):
    assert refused(api.get("/traces", **query), 422)


@pytest.mark.parametrize("odd", ["%00", "..%2F..%2Fetc", "%ED%A0%80", "x" * 500, "<script>"])
def test_odd_ids_of_traces_are_not_found(api, odd):
    assert refused(api.get(f"/traces/{odd}"), 404)
    assert refused(api.get(f"/traces/{odd}/messages"), 404)


@pytest.mark.parametrize("number", ["99999999999999999999", "-1", "1.5", "one", "%00"])
def test_odd_numbers_are_refused(api, ann, number):
    trace = stored_trace(ann)
    assert api.get(f"/traces/{trace}/messages/{number}").status_code in (404, 422)
    assert api.get(f"/traces/{trace}/calls/{number}").status_code in (404, 422)


def test_a_body_beyond_the_limit_is_refused_as_too_large(api):
    body = b'{"mission": "' + b"x" * (5 * 1024 * 1024) + b'"}'
    assert refused(api.post("/traces", body), 413, "larger")
    assert not Trace.objects.exists()


def test_a_last_event_id_that_is_no_number_is_refused(api, ann):
    trace = stored_trace(ann)
    api.headers["Last-Event-ID"] = "7; drop"
    assert refused(api.get(f"/traces/{trace}/events/stream"), 422, "Last-Event-ID")


def test_script_in_a_mission_is_given_back_as_json_and_never_as_html(api, ann):
    stored_trace(ann, "<script>alert(1)</script>")
    response = api.get("/traces")
    assert response["Content-Type"].startswith("application/json")
    assert response["X-Content-Type-Options"] == "nosniff"
