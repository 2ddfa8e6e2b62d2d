"""Skills as rows: filled from the package, edited by people."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from cyberagent.tools.skills import builtin_skills
from skills_app.library import current_skills
from skills_app.models import Skill, SkillVersion

pytestmark = pytest.mark.django_db


def test_the_skills_of_the_package_are_offered():
    assert current_skills() == builtin_skills()
    assert Skill.objects.count() == SkillVersion.objects.count() == len(builtin_skills())
    current_skills()
    assert SkillVersion.objects.count() == len(builtin_skills())


def test_a_skill_that_is_switched_off_is_not_offered():
    current_skills()
    Skill.objects.filter(name="plan-well").update(enabled=False)
    assert "plan-well" not in current_skills()


def test_a_new_release_renews_only_what_nobody_edited():
    current_skills()
    Skill.objects.update(text="an old text")
    edited = Skill.objects.get(name="plan-well")
    ann = User.objects.create_user("ann")
    SkillVersion.objects.create(skill=edited, version=2, text="an old text", by=ann)
    found = current_skills()
    assert found["plan-well"].text == "an old text"
    assert found["write-findings"] == builtin_skills()["write-findings"]
    assert Skill.objects.get(name="write-findings").version == 2
