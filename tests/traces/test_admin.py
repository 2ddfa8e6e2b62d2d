"""Django's admin: what it shows, what it lets nobody change, and a skill's versions."""

from __future__ import annotations

import pytest
from django.test import Client

from skills_app.library import current_skills
from skills_app.models import Skill
from tests.traces.made import planned
from tests.traces.people import person
from traces import access
from traces.models import ApiToken

pytestmark = pytest.mark.django_db

LISTS = (
    "traces/trace", "traces/modelcall", "traces/command", "traces/apitoken",
    "traces/signinlink", "goals/goal", "skills_app/skill", "auth/user",
)  # fmt: skip


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(access.local_admin())
    return client


@pytest.mark.parametrize("address", LISTS)
def test_every_list_opens(admin: Client, address: str) -> None:
    planned().store(access.local_admin())
    assert admin.get(f"/admin/{address}/").status_code == 200


def test_traces_are_not_changed_by_hand(admin: Client) -> None:
    trace = planned().store(access.local_admin())
    assert admin.get(f"/admin/traces/trace/{trace.pk}/change/").status_code == 200
    assert (
        admin.post(f"/admin/traces/trace/{trace.pk}/change/", {"mission": "x"}).status_code == 403
    )
    assert admin.post(f"/admin/traces/trace/{trace.pk}/delete/", {"post": "yes"}).status_code == 403


def test_an_operator_has_no_way_in() -> None:
    client = Client()
    client.force_login(person("olga", "operator"))
    assert client.get("/admin/").status_code == 302


def test_a_token_is_revoked_there(admin: Client) -> None:
    token, _ = access.create_token(person("olga", "operator"), "nightly")
    answer = admin.post(
        "/admin/traces/apitoken/", {"action": "revoke", "_selected_action": [token.pk]}
    )
    assert answer.status_code == 302
    assert ApiToken.objects.get(pk=token.pk).revoked_at is not None


def test_an_edited_skill_gets_a_version_with_who_wrote_it(admin: Client) -> None:
    name = next(iter(current_skills()))
    skill = Skill.objects.get(name=name)
    form = {
        "name": name, "description": skill.description, "text": "Do it my way.", "enabled": "on",
        "versions-TOTAL_FORMS": "1", "versions-INITIAL_FORMS": "1",
        "versions-0-id": str(skill.versions.get().pk), "versions-0-skill": str(skill.pk),
    }  # fmt: skip
    assert admin.post(f"/admin/skills_app/skill/{skill.pk}/change/", form).status_code == 302
    skill.refresh_from_db()
    newest = skill.versions.order_by("-version")[0]
    assert (skill.version, newest.version, newest.text) == (2, 2, "Do it my way.")
    assert newest.by == access.local_admin()
    # What the package brings does not come over it again.
    assert current_skills()[name].text == "Do it my way."
