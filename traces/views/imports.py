"""Bringing in transcripts: a file, or sessions found on this machine. Source: docs/pages.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from cyberagent.core.errors import CyberAgentError
from cyberagent.trace.formats import FORMATS, find_claude_sessions
from traces import access
from traces.transfer import Stored, import_file, kept_as_file
from traces.views.base import html, page, wants_part


def may_look_around(request: HttpRequest) -> bool:
    """Sessions on this machine: the admin of the embedded default alone."""
    return settings.RUNS_EMBEDDED and access.has_role(request.user, "admin")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def import_page(request: HttpRequest) -> HttpResponse:
    access.require(request.user, "operator")
    context: dict[str, Any] = {
        "formats": FORMATS.values(),
        "most": settings.UPLOAD_MAX_BYTES,
        "local": may_look_around(request),
    }
    status = 200
    if request.method == "POST":
        outcome, status = _import(request)
        if wants_part(request):
            return html(request, "traces/_imported.html", outcome, status)
        context |= outcome
    return html(request, "traces/import.html", context, status)


def _import(request: HttpRequest) -> tuple[dict[str, Any], int]:
    upload = request.FILES.get("file")
    if upload is None:
        return {"error": _("Choose a file first.")}, 422
    form = request.POST.get("format", "auto")
    try:
        with kept_as_file(upload, upload.name or "", most=settings.UPLOAD_MAX_BYTES) as path:
            stored = import_file(path, owner=request.user, format=form)
    except CyberAgentError as error:
        return {"error": str(error)}, 422
    return {"stored": stored}, 200


@require_safe
@page
def found(request: HttpRequest) -> HttpResponse:
    """Names, times and sizes; no session is opened."""
    _check_local(request)
    sessions = find_claude_sessions(Path.home())
    return html(request, "traces/_found_sessions.html", {"sessions": sessions})


@require_http_methods(["POST"])
@page
def import_found(request: HttpRequest) -> HttpResponse:
    """Import one of the sessions that the list shows; any other path is not there."""
    _check_local(request)
    wanted = request.POST.get("path", "")
    session = next((s for s in find_claude_sessions(Path.home()) if str(s.path) == wanted), None)
    if session is None:
        raise Http404("no such session")
    try:
        stored: list[Stored] = import_file(session.path, owner=request.user)
    except CyberAgentError as error:
        return html(request, "traces/_imported.html", {"error": str(error)}, 422)
    return html(request, "traces/_imported.html", {"stored": stored})


def _check_local(request: HttpRequest) -> None:
    access.require(request.user, "admin")
    if not settings.RUNS_EMBEDDED:
        raise Http404("only where one person runs it for themselves")
