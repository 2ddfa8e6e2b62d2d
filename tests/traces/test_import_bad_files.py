"""Files that are no transcripts, or odd ones: through the terminal and through the API alike."""

import json
from io import StringIO

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command

from tests.traces.people import Api, person
from traces.models import Branch, Event, Message, Trace

pytestmark = pytest.mark.django_db


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


FIRST = line(role="user", content="Hi")
SECOND = line(role="assistant", content="Hello")

BAD_FILES = {
    "empty": b"",
    "blank": b"\n \r\n\t\n",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20,
    "NUL only": b"\0" * 5000,
    "half a file": b'[{"role": "user", "content": "Hi"}, {"ro',
    "another JSON": b'{"colour": "red"}',
    "a number": b"42",
    "NaN": b"NaN",
    "deep": b"[" * 200_000 + b"]" * 200_000,
    "deep objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "HTML": b"<!doctype html><script>alert(1)</script>",
    "a zip of something else": b"PK\x03\x04" + bytes(200),
}
ODD_FILES = {
    "BOM": b"\xef\xbb\xbf" + FIRST + SECOND,
    "CRLF": (FIRST + SECOND).replace(b"\n", b"\r\n"),
    "NUL in a text": FIRST.replace(b"Hi", b"H\\u0000i") + SECOND,
    "a lone surrogate": FIRST.replace(b"Hi", b"H\\ud800i") + SECOND,
    "NaN beside it": line(role="user", content="Hi", score=float("nan")) + SECOND,
    "script": FIRST.replace(b"Hi", b"<script>alert(1)</script>\\u001b[2J") + SECOND,
}


@pytest.fixture
def api():
    return Api(person("ann", "operator"))


def nothing_is_stored():
    return not any(m.objects.exists() for m in (Trace, Message, Event, Branch))


def upload(api, name, data, **fields):
    return api.upload("/imports", {"file": SimpleUploadedFile(name, data), **fields})


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_over_the_api_in_one_sentence(api, kind):
    response = upload(api, "bad.bin", BAD_FILES[kind])
    assert response.status_code == 422, response.content
    assert len(response.json()["detail"]) < 1000
    assert nothing_is_stored()


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_in_the_terminal_in_one_line(kind, tmp_path):
    (tmp_path / "bad.bin").write_bytes(BAD_FILES[kind])
    out, err = StringIO(), StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("import_trace", str(tmp_path / "bad.bin"), stdout=out, stderr=err)
    assert (ended.value.code, out.getvalue()) == (2, "")
    assert err.getvalue().startswith("error: ")
    assert len(err.getvalue().splitlines()) == 1
    assert nothing_is_stored()


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_transcript_comes_in_whole_over_the_api(api, kind):
    response = upload(api, "odd.jsonl", ODD_FILES[kind], format="openai")
    assert response.status_code == 201, response.content
    [counts] = response.json()
    assert counts["messages"] == 2
    messages = api.get(f"/traces/{counts['trace']}/messages").json()["items"]
    assert [m["role"] for m in messages] == ["user", "assistant"]


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_transcript_harms_no_terminal(kind, tmp_path):
    (tmp_path / "odd.jsonl").write_bytes(ODD_FILES[kind])
    out = StringIO()
    call_command(
        "import_trace", str(tmp_path / "odd.jsonl"), "--format", "openai", "--json", stdout=out
    )
    trace = json.loads(out.getvalue())["trace"]
    shown = StringIO()
    call_command("show", trace, stdout=shown)
    assert "Hello" in shown.getvalue()
    assert not set(shown.getvalue()) & set("\0\x1b\ud800")


@pytest.mark.parametrize(
    "name",
    ["../../../etc/cron.d/x", "..\\..\\x.json", "a\0b.json", "<script>.json", ".bashrc", "x" * 300],
)
def test_a_name_of_an_upload_is_never_a_path(api, name, tmp_path, settings):
    response = upload(api, name, FIRST + SECOND)
    assert response.status_code in (201, 400), response.content


def test_an_upload_beyond_the_limit_is_refused(api, settings):
    settings.UPLOAD_MAX_BYTES = 1000
    response = upload(api, "big.json", line(role="user", content="x" * 1000))
    assert response.status_code == 422
    assert "larger than 1,000 bytes" in response.json()["detail"]
    assert nothing_is_stored()


def test_an_import_without_a_file_or_with_an_unknown_format_is_refused(api):
    assert api.upload("/imports", {"format": "auto"}).status_code == 422
    response = upload(api, "x.json", FIRST, format="../secrets")
    assert response.status_code == 422
    assert "there is no format" in response.json()["detail"]
    assert nothing_is_stored()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nno end',
        b"\0" * 100,
    ],
)
def test_a_malformed_upload_is_a_clear_error(api, body):
    response = api.client.post(
        "/api/v1/imports", body, content_type="multipart/form-data; boundary=x", headers=api.headers
    )
    assert response.status_code in (400, 422)
    assert response.json()["detail"]
    assert nothing_is_stored()


def test_of_several_conversations_in_a_file_all_are_stored_or_none(api):
    good = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    both = line(messages=good) + line(messages=good)
    response = upload(api, "two.jsonl", both, format="openai")
    assert response.status_code == 201
    assert len(response.json()) == len({r["trace"] for r in response.json()}) == 2


def test_an_export_over_the_api_can_be_imported_again(api):
    [first] = upload(api, "chat.jsonl", FIRST + SECOND, format="openai").json()
    exported = api.get(f"/traces/{first['trace']}/export", format="trace")
    assert exported["Content-Type"] == "application/zip"
    assert exported["Content-Disposition"] == f'attachment; filename="{first["trace"]}.trace.zip"'
    [again] = upload(api, "again.zip", exported.content).json()
    assert again["messages"] == 2
    chat = api.get(f"/traces/{again['trace']}/export", format="openai").json()
    messages = chat if isinstance(chat, list) else chat["messages"]
    assert [m["content"] for m in messages if m["role"] != "system"] == ["Hi", "Hello"]
