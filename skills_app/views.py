"""The pages of skills: the list, and one with its text and versions. Source: docs/skills.md."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from cyberagent.core.errors import NotFound
from skills_app.models import Skill
from traces import rendering
from traces.views.base import html, page


@require_safe
def skills(request: HttpRequest) -> HttpResponse:
    return html(request, "skills/list.html", {"skills": Skill.objects.defer("text")})


@require_safe
@page
def skill(request: HttpRequest, name: str) -> HttpResponse:
    found = Skill.objects.filter(name=name).first()
    if found is None:
        raise NotFound("skill", name)
    versions = found.versions.select_related("by").order_by("-version")[:50]
    context = {
        "skill": found,
        "body": rendering.prose(found.text),
        "source": rendering.plain(found.text),
        "versions": versions,
        "raw": request.GET.get("view") == "source",
    }
    return html(request, "skills/one.html", context)
