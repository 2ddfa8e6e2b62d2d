"""What all pages share: how they are rendered and how an error becomes an answer.

Source: docs/pages.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from cyberagent.core.errors import CyberAgentError, NotFound
from traces.rendering import page_text

View = Callable[..., HttpResponse]


def wants_part(request: HttpRequest) -> bool:
    """Whether only a part of the page was asked for, to be put into one that is open."""
    return request.headers.get("HX-Request") == "true"


def html(
    request: HttpRequest, template: str, context: Mapping[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    """The template as an answer. Texts of transcripts may hold what UTF-8 cannot; one place
    sees to all of them."""
    text = render_to_string(template, dict(context or {}), request=request)
    response = HttpResponse(page_text(text), status=status)
    # The same address has a whole page and a part of it: no cache may confuse them.
    patch_vary_headers(response, ["HX-Request", "Cookie", "Accept-Language"])
    response["Cache-Control"] = "private, no-cache"
    return response


def page(view: View) -> View:
    """What the domain finds missing is a 404."""

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except NotFound as error:
            raise Http404(str(error)) from None

    return answered


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404, as a page or as a notice in the page that asked."""
    if wants_part(request):
        return html(
            request, "_notice.html", {"text": _("It is not there any more."), "bad": True}, 404
        )
    return html(request, "404.html", status=404)


def denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, likewise; who may not is told which role may."""
    if wants_part(request):
        return html(request, "_notice.html", {"text": str(exception), "bad": True}, 403)
    return html(request, "403.html", {"exception": str(exception)}, 403)


def done(request: HttpRequest, text: str, to: Any, status: int = 200) -> HttpResponse:
    """An act's outcome: a notice in the open page, else a message on the page it leads to."""
    if wants_part(request):
        return html(request, "_notice.html", {"text": text, "bad": status >= 400}, status)
    (messages.error if status >= 400 else messages.success)(request, text)
    return redirect(to)


def acted(request: HttpRequest, act: Callable[[], Any], text: str, to: Any) -> HttpResponse:
    """Do it and say so; what the domain refuses is said in its own words and changes nothing."""
    try:
        act()
    except NotFound as error:
        raise Http404(str(error)) from None
    except CyberAgentError as error:
        return done(request, str(error), to, status=409)
    return done(request, text, to)
