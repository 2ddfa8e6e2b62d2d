"""Django's admin over skills. Every change is a new version with who made it: what the package
brings never overwrites it. Source: docs/skills.md."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from skills_app.models import Skill, SkillVersion


class VersionInline(admin.TabularInline):
    model = SkillVersion
    fields = readonly_fields = ("version", "by", "created_at", "description")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Skill)
class SkillAdmin(admin.ModelAdmin):
    list_display = ("name", "description", "origin", "enabled", "version", "updated_at")
    list_filter = ("enabled", "origin")
    search_fields = ("name", "description")
    fields = ("name", "description", "text", "enabled", "version", "updated_at")
    readonly_fields = ("version", "updated_at")
    inlines = (VersionInline,)

    @transaction.atomic
    def save_model(self, request: HttpRequest, obj: Skill, form: Any, change: bool) -> None:
        rewritten = not change or {"description", "text"} & set(form.changed_data)
        if change and rewritten:
            obj.version += 1
        if not change:
            obj.origin = "admin"
        obj.updated_at = timezone.now()
        super().save_model(request, obj, form, change)
        if rewritten:
            SkillVersion.objects.create(
                skill=obj,
                version=obj.version,
                description=obj.description,
                text=obj.text,
                by=request.user,
            )
