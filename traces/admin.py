"""Django's admin over traces: to look up, not to change. What a run consists of is append-only,
and what operators do goes through ``traces.commands``. Source: docs/access.md."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from traces import access
from traces.models import ApiToken, Command, Knowledge, ModelCall, SignInLink, Trace


class ReadOnly(admin.ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Trace)
class TraceAdmin(ReadOnly):
    list_display = ("id", "mission", "status", "owner", "provider", "model", "steps", "created_at")
    list_filter = ("status", "origin", "preset")
    search_fields = ("id", "mission")
    list_select_related = ("owner",)
    # Pages of an installation with very many rows must not count them all first.
    show_full_result_count = False


@admin.register(ModelCall)
class ModelCallAdmin(ReadOnly):
    list_display = ("trace_id", "number", "provider", "model", "status", "estimated_tokens", "cost")
    list_filter = ("status", "provider")
    search_fields = ("trace__id",)
    exclude = ("manifest",)
    show_full_result_count = False


@admin.register(Command)
class CommandAdmin(ReadOnly):
    list_display = ("trace_id", "name", "by", "status", "result", "created_at")
    list_filter = ("name", "status")
    list_select_related = ("by",)
    show_full_result_count = False


@admin.register(Knowledge)
class KnowledgeAdmin(ReadOnly):
    list_display = ("trace_id", "name", "text", "status", "judge", "created_at")
    list_filter = ("status",)
    show_full_result_count = False


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    """Tokens are made by whoever uses them; here they are revoked."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    actions = ("revoke",)

    @admin.action(description="Revoke", permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: Any) -> None:
        access.require(request.user, "admin")
        for token in queryset:
            access.revoke(token)


@admin.register(SignInLink)
class SignInLinkAdmin(ReadOnly):
    list_display = ("user", "expires_at", "used_at")
    list_select_related = ("user",)
    exclude = ("token_sha256",)
