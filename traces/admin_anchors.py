"""Root anchors in Django's admin: every revision, and the form that makes a new one.

The form is sent twice: first it says what the revision would mean, then it is confirmed. Rows
that exist are never changed. Source: docs/access.md, "Root anchors".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from cyberagent.core.anchor import MAX_ANCHOR_CHARS, RootTaskAnchor
from cyberagent.core.errors import Conflict, InvalidInput
from traces import access, anchors
from traces.admin_base import ReadOnly
from traces.anchor_form import CONSTRAINTS, CRITERIA, OBJECTIVE, AnchorErrors, anchor_of, fields_of
from traces.models import AnchorRevision
from traces.rendering import page_text
from traces.rows import held

FIELD_NAMES = {
    OBJECTIVE: _("Objective"),
    CRITERIA: _("Completion criteria"),
    CONSTRAINTS: _("Constraints"),
}


class ReviseForm(forms.Form):
    """The anchor as it shall be. ``expected_sha256``: of the revision that it began from."""

    objective = forms.CharField(
        label=FIELD_NAMES[OBJECTIVE], widget=AdminTextareaWidget(attrs={"rows": 3})
    )
    completion_criteria = forms.CharField(
        label=FIELD_NAMES[CRITERIA],
        widget=AdminTextareaWidget(attrs={"rows": 5}),
        help_text=_("One a line. By these the whole run is judged."),
    )
    constraints = forms.CharField(
        label=FIELD_NAMES[CONSTRAINTS],
        required=False,
        widget=AdminTextareaWidget(attrs={"rows": 5}),
        help_text=_(
            "One a line. Contracts that exist keep theirs, and get those added that they lack."
        ),
    )
    why = forms.CharField(
        label=_("Reason"),
        max_length=anchors.MAX_WHY,
        widget=AdminTextInputWidget(attrs={"autocomplete": "off"}),
        help_text=_("It is kept with the revision, and the agents are told it."),
    )
    expected_sha256 = forms.CharField(widget=forms.HiddenInput, max_length=64)

    anchor: RootTaskAnchor

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        try:
            self.anchor = anchor_of(cleaned)
        except AnchorErrors as error:
            for name, text in error.fields.items():
                self.add_error(name if name in FIELD_NAMES else None, text)
        return cleaned


class AnchorRevisionAdmin(ReadOnly):
    list_display = (
        "trace_id", "number", "objective", "by_", "created_at", "why_", "hash", "revise_it",
    )  # fmt: skip
    search_fields = ("trace__id", "text", "by_name", "why", "sha256")
    search_help_text = _("A run, words of the anchor or of the reason, who, or a hash")
    ordering = ("-created_at", "-pk")
    fields = (
        "run", "number", "objective", "completion_criteria", "constraints", "by_", "created_at",
        "why_", "sha256", "supersedes", "canonical",
    )  # fmt: skip
    readonly_fields = fields
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[AnchorRevision]:
        newest = Max("trace__anchor_revisions__number")
        return super().get_queryset(request).annotate(newest=newest)

    # What is shown

    @admin.display(description=_("Run"))
    def run(self, row: AnchorRevision) -> SafeString:
        return format_html('<a href="{}">{}</a>', reverse("run", args=[row.trace_id]), row.trace_id)

    @admin.display(description=FIELD_NAMES[OBJECTIVE])
    def objective(self, row: AnchorRevision) -> str:
        return page_text(json.loads(row.text)[OBJECTIVE])

    @admin.display(description=FIELD_NAMES[CRITERIA])
    def completion_criteria(self, row: AnchorRevision) -> SafeString:
        return _listed(json.loads(row.text)[CRITERIA])

    @admin.display(description=FIELD_NAMES[CONSTRAINTS])
    def constraints(self, row: AnchorRevision) -> SafeString:
        return _listed(json.loads(row.text)[CONSTRAINTS])

    @admin.display(description=_("By"))
    def by_(self, row: AnchorRevision) -> str:
        return page_text(held(row.by_name))

    @admin.display(description=_("Reason"))
    def why_(self, row: AnchorRevision) -> str:
        return page_text(held(row.why))

    @admin.display(description=_("Hash"))
    def hash(self, row: AnchorRevision) -> SafeString:
        return format_html("<code>{}</code>", row.sha256[:12])

    @admin.display(description=_("Canonical JSON, as it is hashed"))
    def canonical(self, row: AnchorRevision) -> SafeString:
        return format_html("<code>{}</code>", row.text)

    @admin.display(description=_("Newest"))
    def revise_it(self, row: Any) -> SafeString | str:
        if row.number != row.newest:
            return ""
        return format_html('<a href="{}">{}</a>', _address("revise", row), gettext("Revise…"))

    # Revising

    def get_urls(self) -> list[Any]:
        revise = self.admin_site.admin_view(self.revise)
        return [
            path("<int:pk>/revise/", revise, name="traces_anchorrevision_revise"),
            *super().get_urls(),
        ]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kw: Any) -> Any:
        """The page of a revision leads to the form, an old one to the newest one first."""
        row = kw.get("obj")
        newest = row and anchors.revisions(row.trace)[-1]
        address = _address("revise", newest) if newest else ""
        more = {"newest": newest, "revise_address": address, "is_newest": newest == row}
        return super().render_change_form(request, context | more, *args, **kw)

    def revise(self, request: HttpRequest, pk: int) -> HttpResponse:
        access.require(request.user, "admin")
        row = get_object_or_404(AnchorRevision.objects.select_related("trace"), pk=pk)
        newest = anchors.revisions(row.trace)[-1]
        if newest.pk != row.pk and request.method != "POST":
            return redirect(_address("revise", newest))
        if request.method != "POST":
            first = fields_of(anchors.anchor_in(newest)) | {"expected_sha256": newest.sha256}
            return self._form(request, newest, ReviseForm(initial=first))
        form = ReviseForm(request.POST)
        if not form.is_valid() or "_edit" in request.POST:
            return self._form(request, newest, form)
        try:
            if "_revise" in request.POST:
                return self._revise(request, newest, form)
            found = anchors.preview(newest.trace, form.anchor.to_json())
            return self._form(request, newest, form, preview=found)
        except (Conflict, InvalidInput) as error:
            form.add_error(None, str(error))
            return self._form(request, newest, form)

    def _revise(
        self, request: HttpRequest, newest: AnchorRevision, form: ReviseForm
    ) -> HttpResponseRedirect:
        given = form.cleaned_data
        made = anchors.revise(
            newest.trace,
            form.anchor.to_json(),
            by=request.user,
            why=given["why"],
            expected_sha256=given["expected_sha256"],
        )
        self.log_addition(request, made, given["why"])
        told = gettext("Revision %(n)d of the anchor of run %(run)s is in force.")
        messages.success(request, told % {"n": made.number, "run": made.trace_id})
        return redirect(_address("change", made))

    def _form(
        self,
        request: HttpRequest,
        newest: AnchorRevision,
        form: ReviseForm,
        preview: anchors.Preview | None = None,
    ) -> HttpResponse:
        """The form, or with a preview the question whether to act. Both begin from the newest
        revision: whoever was overtaken sees the differences to what is there now."""
        overtaken = form.is_bound and form.data.get("expected_sha256") != newest.sha256
        if form.is_bound:
            form.data = form.data.copy()
            form.data["expected_sha256"] = newest.sha256
        context = self.admin_site.each_context(request) | {
            "title": gettext("Revise the root anchor"),
            "subtitle": newest.trace_id,
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "newest": newest,
            "newest_address": _address("change", newest),
            "preview": preview,
            "overtaken": overtaken,
            "changes": [(FIELD_NAMES[name], *both) for name, *both in preview.changes()]
            if preview
            else [],
            "most": MAX_ANCHOR_CHARS,
        }
        template = "admin/traces/anchorrevision/revise.html"
        return TemplateResponse(request, template, context, status=422 if form.errors else 200)


def _address(what: str, row: AnchorRevision) -> str:
    return reverse(f"admin:traces_anchorrevision_{what}", args=[row.pk])


def _listed(texts: Sequence[str]) -> SafeString:
    return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", ((t,) for t in texts)))
