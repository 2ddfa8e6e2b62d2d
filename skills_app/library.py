"""The skills that runs are offered: rows, first filled from the files of the package.

Source: docs/skills.md.
"""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from cyberagent.core import ports
from cyberagent.tools.skills import builtin_skills
from skills_app.models import Skill, SkillVersion

BUILT_IN = "built-in"


def current_skills() -> dict[str, ports.Skill]:
    """Every enabled skill by name, as it reads now."""
    seed()
    rows = Skill.objects.filter(enabled=True).values_list("name", "description", "text")
    return {name: ports.Skill(name=name, description=d, text=text) for name, d, text in rows}


def seed() -> None:
    """Give each skill of the package a row, and the new text to a row that nobody has edited
    since. Edited ones stay as their editor left them."""
    stored = {row.name: row for row in Skill.objects.all()}
    for name, skill in builtin_skills().items():
        row = stored.get(name)
        if row is None:
            _write(Skill(name=name, origin=BUILT_IN), skill, version=1)
        elif (row.description, row.text) != (skill.description, skill.text):
            edited = row.versions.filter(by__isnull=False).exists()
            if row.origin == BUILT_IN and not edited:
                _write(row, skill, version=row.version + 1)


@transaction.atomic
def _write(row: Skill, skill: ports.Skill, *, version: int) -> None:
    row.description, row.text, row.version = skill.description, skill.text, version
    row.updated_at = timezone.now()
    row.save()
    SkillVersion.objects.create(
        skill=row, version=version, description=skill.description, text=skill.text
    )
