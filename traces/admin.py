"""Django's admin over traces: to look up, not to change. What a run consists of is append-only,
and what operators do goes through ``traces.commands``; a root anchor alone is revised here
(``traces.admin_anchors``). Source: docs/access.md."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from traces import access
from traces.admin_anchors import AnchorRevisionAdmin
from traces.admin_base import ReadOnly
from traces.models import (
    AnchorRevision,
    ApiToken,
    Command,
    Knowledge,
    ModelCall,
    SignInLink,
    Trace,
    ValidationResult,
    VerdictReview,
)
from traces.rendering import page_text
from traces.rows import held

admin.site.register(AnchorRevision, AnchorRevisionAdmin)


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


@admin.register(ValidationResult)
class ValidationResultAdmin(ReadOnly):
    list_display = ("trace_id", "sequence", "verdict", "task_", "model", "cost", "created_at")
    list_filter = ("verdict", "is_root")
    search_fields = ("trace__id", "task")
    fields = (
        "trace", "sequence", "validator", "verdict", "reason_", "criteria_", "task_", "is_root",
        "packet_sha256", "model", "cost", "created_at",
    )  # fmt: skip
    show_full_result_count = False

    @admin.display(description=_("Task"))
    def task_(self, row: ValidationResult) -> str:
        return page_text(held(row.task))

    @admin.display(description=_("Reason"))
    def reason_(self, row: ValidationResult) -> str:
        return page_text(held(row.reason))

    @admin.display(description=_("Criteria"))
    def criteria_(self, row: ValidationResult) -> SafeString:
        told = (f"{c['id']} {c['criterion']}: {c['verdict']}" for c in json.loads(row.criteria))
        return format_html_join("", "<p>{}</p>", ((page_text(line),) for line in told))


@admin.register(VerdictReview)
class VerdictReviewAdmin(ReadOnly):
    list_display = ("result", "word", "confirms", "reason", "by", "created_at")
    list_filter = ("word", "confirms")
    list_select_related = ("result", "by")
    search_fields = ("result__trace__id",)
    fields = ("result", "word", "confirms", "criteria", "reason", "comment_", "by", "created_at")
    show_full_result_count = False

    @admin.display(description=_("Comment"))
    def comment_(self, row: VerdictReview) -> str:
        return page_text(held(row.comment))


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
