"""Who may call the REST API, and what it says to those who may not."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.traces.people import Api, person, stored_trace
from traces.models import ApiToken, Command, Trace

pytestmark = pytest.mark.django_db

READS = [
    "", "/messages", "/messages/1", "/goals", "/calls", "/calls/1", "/calls/1/window", "/events",
    "/events/stream", "/commands", "/export",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/traces", "/tokens", "/providers", "/skills", "/openapi.json"])
def test_nothing_is_given_to_somebody_who_is_not_signed_in(path):
    response = Api().get(path)
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert response.json()["detail"]


@pytest.mark.parametrize("header", ["Bearer ca_wrong", "Bearer", "Basic eDp5", "Bearer ca_\u00e9"])
def test_a_wrong_token_is_refused(header):
    api = Api()
    api.headers["Authorization"] = header
    assert api.get("/traces").status_code == 401


@pytest.mark.parametrize("path", READS)
def test_another_persons_trace_does_not_exist(path):
    hidden = stored_trace(person("ann", "operator"))
    bob = Api(person("bob", "operator"))
    response, missing = bob.get(f"/traces/{hidden}{path}"), bob.get(f"/traces/0000{path}")
    assert response.status_code == missing.status_code == 404
    assert response.json()["detail"].replace(hidden, "0000") == missing.json()["detail"]


def test_another_persons_trace_takes_no_commands():
    hidden = stored_trace(person("ann", "operator"))
    response = Api(person("bob", "operator")).post(f"/traces/{hidden}/commands", {"name": "stop"})
    assert response.status_code == 404
    assert not Command.objects.exists()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/traces", {"mission": "Count"}),
        ("/traces/{own}/commands", {"name": "stop"}),
    ],
)
def test_a_viewer_changes_nothing(path, body):
    ann = person("ann", "viewer")
    own = stored_trace(ann)
    response = Api(ann).post(path.format(own=own), body)
    assert response.status_code == 403
    assert "needs the role operator; yours is viewer" in response.json()["detail"]
    assert Trace.objects.count() == 1
    assert not Command.objects.exists()


# Starting runs -----------------------------------------------------------------------------


def start(user, **config):
    return Api(user).post(
        "/traces", {"mission": "Look", "config": {"provider": "scripted"} | config}
    )


def test_an_operator_starts_a_run_that_is_theirs():
    ann = person("ann", "operator")
    response = start(ann)
    assert response.status_code == 201
    assert Trace.objects.get(pk=response.json()["id"]).owner == ann


def test_only_an_admin_names_any_folder_as_a_workspace(tmp_path):
    refused = start(person("ann", "operator"), workspace=str(tmp_path))
    assert refused.status_code == 403
    assert "only an admin may name a workspace" in refused.json()["detail"]
    assert not Trace.objects.exists()
    assert start(person("root", "admin"), workspace=str(tmp_path)).status_code == 201


@pytest.mark.parametrize("path", ["..", "../..", "mine/../.."])
def test_a_workspace_below_the_data_folder_is_not_left(path, settings):
    below = settings.DATA_DIR / "workspaces"
    (below / "mine").mkdir(parents=True, exist_ok=True)
    ann = person("ann", "operator")
    assert start(ann, workspace=str(below / "mine")).status_code == 201
    assert start(ann, workspace=f"{below}/{path}").status_code == 403


def test_a_link_out_of_the_data_folder_is_no_way_out(settings, tmp_path):
    below = settings.DATA_DIR / "workspaces"
    below.mkdir(parents=True, exist_ok=True)
    link = below / f"link-{tmp_path.name}"
    link.symlink_to(tmp_path)
    assert start(person("ann", "operator"), workspace=str(link)).status_code == 403


@pytest.mark.parametrize("workspace", ["/no/such/folder", "a\0b", "/etc/hostname"])
def test_a_workspace_that_is_no_folder_is_refused(workspace):
    response = start(person("root", "admin"), workspace=workspace)
    assert response.status_code == 422
    assert "workspace" in response.json()["detail"]


def test_nobody_replays_a_run_that_they_may_not_see():
    hidden = stored_trace(person("ann", "operator"))
    response = start(
        person("bob", "operator"), provider="replay", provider_options={"trace": hidden}
    )
    assert response.status_code == 404
    assert Trace.objects.count() == 1


# Viewers -----------------------------------------------------------------------------------


def test_a_viewer_imports_nothing():
    file = SimpleUploadedFile("t.json", b'[{"role": "user", "content": "Hi"}]')
    response = Api(person("ann", "viewer")).upload("/imports", {"file": file})
    assert response.status_code == 403
    assert not Trace.objects.exists()


def test_a_viewer_does_not_see_the_exact_payload():
    ann = person("ann", "viewer")
    assert Api(ann).get(f"/traces/{stored_trace(ann)}/calls/1/window").status_code == 403


def test_a_session_reads_but_writes_only_with_its_csrf_token():
    api = Api(person("ann", "operator"), session=True)
    assert api.get("/traces").status_code == 200
    refused = api.post("/tokens", {"name": "x"})
    assert refused.status_code == 403
    assert "CSRF" in refused.json()["detail"]
    assert not ApiToken.objects.exists()


def test_a_session_writes_with_its_csrf_token():
    api = Api(person("ann"), session=True)
    token = "a" * 32
    api.client.cookies["csrftoken"] = token
    api.headers["X-CSRFToken"] = token
    assert api.post("/tokens", {"name": "x"}).status_code == 201


def test_a_token_made_over_the_api_works_until_it_is_revoked():
    api = Api(person("ann"))
    made = api.post("/tokens", {"name": "notebook"}).json()
    other = Api()
    other.headers["Authorization"] = f"Bearer {made['token']}"
    assert other.get("/traces").status_code == 200
    listed = [t["name"] for t in other.get("/tokens").json()]
    assert listed == ["tests", "notebook"]
    assert made["token"] not in other.get("/tokens").content.decode()
    assert api.delete(f"/tokens/{made['id']}").json()["revoked_at"]
    assert other.get("/traces").status_code == 401


def test_the_schema_names_every_address():
    schema = Api(person("ann")).get("/openapi.json").json()
    paths = {p.removeprefix("/api/v1") for p in schema["paths"]}
    assert {
        "/traces", "/traces/{trace_id}", "/traces/{trace_id}/messages", "/traces/{trace_id}/goals",
        "/traces/{trace_id}/calls", "/traces/{trace_id}/calls/{number}/window",
        "/traces/{trace_id}/events", "/traces/{trace_id}/events/stream",
        "/traces/{trace_id}/commands", "/traces/{trace_id}/export", "/imports", "/providers",
    } <= paths  # fmt: skip
    assert {"TokenAuth", "SessionAuth"} == set(schema["components"]["securitySchemes"])
