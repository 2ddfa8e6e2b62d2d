"""Skills over the REST API. Source: docs/api.md, "Addresses"."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Router, Schema

from cyberagent.core.errors import NotFound
from skills_app.models import Skill
from traces.api import PROBLEMS

router = Router()


class SkillOut(Schema):
    name: str
    description: str
    origin: str
    enabled: bool
    version: int
    updated_at: datetime


class SkillDetail(SkillOut):
    text: str


@router.get("/skills", response={200: list[SkillOut], **PROBLEMS}, tags=["skills"])
def list_skills(request: HttpRequest) -> QuerySet[Skill]:
    """All skills, without their text."""
    return Skill.objects.all()


@router.get("/skills/{name}", response={200: SkillDetail, **PROBLEMS}, tags=["skills"])
def get_skill(request: HttpRequest, name: str) -> Skill:
    skill = Skill.objects.filter(name=name).first() if "\0" not in name else None
    if skill is None:
        raise NotFound("skill", name)
    return skill
