"""Starting runs: what is refused first, and where a run works that names no folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig
from traces import access, commands
from traces.models import Trace
from traces.starting import start_for

pytestmark = pytest.mark.usefixtures("threads")

OWN = {"script": {"turns": [{"say": "Done."}]}}


@pytest.fixture
def ann() -> User:
    user = User.objects.create_user("ann")
    access.set_role(user, "operator")
    return user


def workspace_of(trace: Trace) -> Path:
    return Path(json.loads(trace.config)["workspace"])


def test_a_run_that_names_no_folder_gets_an_empty_one_of_its_own(ann: User):
    config = RunConfig(provider="scripted", provider_options=OWN)
    one, other = (workspace_of(start_for(ann, "Look.", config)) for _ in range(2))
    assert one != other and list(one.iterdir()) == []
    assert one.parent == settings.DATA_DIR / "workspaces"


def test_the_built_in_script_works_on_a_copy_of_its_own_files(ann: User):
    folder = workspace_of(start_for(ann, "Look.", RunConfig(provider="scripted")))
    assert (folder / "notes.py").is_file() and not (folder / "NOTES.md").exists()


def test_the_built_in_script_overwrites_nobodys_notes(ann: User, tmp_path: Path):
    access.set_role(ann, "admin")
    (tmp_path / "NOTES.md").write_text("mine")
    config = RunConfig(provider="scripted", workspace=str(tmp_path))
    with pytest.raises(InvalidConfig, match="would overwrite"):
        start_for(ann, "Look.", config)
    assert not Trace.objects.exists()


def test_a_provider_without_its_key_is_refused_before_anything_is_stored(ann: User):
    with pytest.raises(InvalidConfig, match="Set ANTHROPIC_API_KEY"):
        start_for(ann, "Look.", RunConfig(provider="anthropic", model="m"))
    assert not Trace.objects.exists()


def test_the_form_replays_a_run_that_the_person_may_see(ann: User, client: Client):
    client.force_login(ann)
    mine = commands.start(ann, "Look.", RunConfig(provider="scripted"))
    hidden = commands.start(User.objects.create_user("bo"), "Secret.", RunConfig())
    fields = {"mission": "Again.", "provider": "replay", "preset": "cyber", "language": "en"}

    answer = client.post("/runs/new/", {**fields, "trace": f"http://testserver/runs/{mine.pk}/"})
    assert answer.status_code == 302
    made = Trace.objects.get(mission="Again.")
    assert json.loads(made.config)["provider_options"]["trace"] == mine.pk

    for told in ("", "nope", hidden.pk):
        answer = client.post("/runs/new/", {**fields, "trace": told})
        assert answer.status_code == 422 and b"trace-error" in answer.content
    assert Trace.objects.filter(provider="replay").count() == 1
