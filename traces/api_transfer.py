"""The REST API of imports, exports and providers. Source: docs/api.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import File, Form, Router, Schema, Status
from ninja.files import UploadedFile

from cyberagent.core.errors import InvalidInput
from cyberagent.providers.choosing import provider_status
from traces import access
from traces.api import PROBLEMS
from traces.api_schemas import ImportedOut
from traces.runs import environment
from traces.transfer import export_text, import_file, kept_as_file

router = Router()


class ProviderOut(Schema):
    name: str
    label: str
    usable: bool
    needs: str
    model: str
    needs_model: bool


@router.post("/imports", response={201: list[ImportedOut], **PROBLEMS}, tags=["imports"])
def import_transcript(
    request: HttpRequest, file: File[UploadedFile], format: Form[str] = "auto"
) -> Any:
    """Import a transcript (multipart, field ``file``). Each conversation in it becomes a trace
    of yours: all of them, or none. Needs the role operator."""
    access.require(request.user, "operator")
    if file.size > settings.UPLOAD_MAX_BYTES:
        raise InvalidInput(f"the file is larger than {settings.UPLOAD_MAX_BYTES:,} bytes")
    with kept_as_file(file.file, file.name, most=settings.UPLOAD_MAX_BYTES) as path:
        stored = import_file(path, owner=request.user, format=format)
    return Status(201, [one.counts() for one in stored])


@router.get("/traces/{trace_id}/export", response=PROBLEMS, tags=["exports"])
def export_trace(
    request: HttpRequest, trace_id: str, format: Literal["trace", "openai"] = "trace"
) -> HttpResponse:
    """A trace as a file: ``trace`` is all of it as a zip that can be imported again, ``openai``
    its main path as chat messages. It is not redacted and needs the role operator."""
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    kind, ending = {
        "trace": ("application/zip", "trace.zip"),
        "openai": ("application/json", "openai.json"),
    }[format]
    response = HttpResponse(export_text(trace, format), content_type=kind)
    response["Content-Disposition"] = f'attachment; filename="{trace.pk}.{ending}"'
    return response


@router.get("/providers", response={200: list[ProviderOut], **PROBLEMS}, tags=["providers"])
def list_providers(request: HttpRequest) -> Any:
    """Every model provider, whether it can be used on this machine, and what it needs."""
    return [asdict(status) for status in provider_status(environment())]
