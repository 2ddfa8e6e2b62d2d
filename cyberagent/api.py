"""The REST API ``/api/v1``: who may call it, which routers it has, and how errors become answers.

Every error of the domain is turned into an HTTP status here and nowhere else; the body is always
``{"detail": sentence}``. Source: docs/api.md.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.middleware.csrf import CsrfViewMiddleware
from django.urls import re_path
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.security import HttpBearer
from ninja.security import SessionAuth as NinjaSessionAuth

from cyberagent.core.errors import (
    Conflict,
    CyberAgentError,
    InvalidInput,
    NotFound,
    ProviderError,
)
from goals.api import router as goals_router
from skills_app.api import router as skills_router
from traces.access import user_of_token
from traces.api import router as traces_router
from traces.api_acts import router as acts_router
from traces.api_anchors import router as anchors_router
from traces.api_lab import router as lab_router
from traces.api_transfer import router as transfer_router
from traces.api_tree import router as tree_router
from traces.api_verdicts import router as verdicts_router

logger = logging.getLogger(__name__)


# Who is asking -----------------------------------------------------------------------------


class TokenAuth(HttpBearer):
    """``Authorization: Bearer ca_…``. No CSRF check: a browser never sends it by itself."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        user = user_of_token(token)
        if user is not None:
            request.user = user
        return user


class SessionAuth(NinjaSessionAuth):
    """The dashboard's own session; writing needs the CSRF token."""

    def _get_key(self, request: HttpRequest) -> str | None:
        # Nobody signed in: say 401, rather than complain of a missing CSRF token.
        if request.user.is_authenticated and (reason := _csrf_problem(request)):
            raise PermissionDenied(f"CSRF: {reason}")
        return None


class _CsrfCheck(CsrfViewMiddleware):
    """Gives the reason of a refusal instead of the page that says so."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def _csrf_problem(request: HttpRequest) -> str | None:
    check = _CsrfCheck(lambda _: HttpResponse())
    request.csrf_processing_done = False
    check.process_request(request)
    return check.process_view(request, None, (), {})


# What comes in -----------------------------------------------------------------------------


class StrictParser(Parser):
    """JSON as the standard has it: NaN and Infinity are errors, and so is a body that is not
    an object or an array nested beyond reason."""

    def parse_body(self, request: HttpRequest) -> Any:
        try:
            return json.loads(request.body, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Api(NinjaAPI):
    @property
    def urls(self) -> Any:
        """As ninja's, out of reach of the sign-in redirect: a program gets 401 as JSON, and
        404 as JSON for what is no address of ours."""
        patterns, *rest = super().urls
        patterns = [*patterns, re_path("", _no_such_address)]
        for pattern in patterns:
            login_not_required(pattern.callback)
        return (patterns, *rest)


def _no_such_address(request: HttpRequest, **_: Any) -> HttpResponse:
    return _answer(request, 404, "there is no such address; see openapi.json")


api = Api(
    title="CyberAgent",
    version="1",
    description="Traces, their messages, goals, calls and events, and the operators' commands.",
    auth=[TokenAuth(), SessionAuth()],
    parser=StrictParser(),
    # Swagger's page needs inline scripts, which the Content-Security-Policy forbids; the schema
    # itself is served below, to whoever may call the API.
    docs_url=None,
    openapi_url=None,
)


@api.get("/openapi.json", include_in_schema=False)
def openapi(request: HttpRequest) -> Any:
    return dict(api.get_openapi_schema())


# What goes wrong ---------------------------------------------------------------------------

# The first class that fits decides.
_STATUS: tuple[tuple[type[CyberAgentError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (InvalidInput, 422),
    (ProviderError, 502),
    (CyberAgentError, 422),
)


def _answer(request: HttpRequest, status: int, detail: str, **more: Any) -> HttpResponse:
    return api.create_response(request, {"detail": detail, **more}, status=status)


@api.exception_handler(CyberAgentError)
def _domain_error(request: HttpRequest, error: CyberAgentError) -> HttpResponse:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return _answer(request, status, str(error))


@api.exception_handler(PermissionDenied)
def _denied(request: HttpRequest, error: PermissionDenied) -> HttpResponse:
    return _answer(request, 403, str(error) or "this is not allowed")


@api.exception_handler(AuthenticationError)
def _not_signed_in(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = _answer(request, 401, "sign in, or send an API token as a bearer token")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    """ninja wraps whatever the parser raises; the cause is what the caller needs to know."""
    cause = error.__cause__
    if isinstance(cause, RequestDataTooBig):
        return _answer(request, 413, "the body is larger than this address takes")
    if isinstance(cause, ValueError):
        return _answer(request, error.status_code, f"the body is not JSON: {cause}")
    return _answer(request, error.status_code, str(error))


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return _answer(request, 413, "the body is larger than this address takes")


@api.exception_handler(SuspiciousOperation)
@api.exception_handler(MultiPartParserError)
def _malformed(request: HttpRequest, error: Exception) -> HttpResponse:
    return _answer(request, 400, f"the request is malformed: {error}")


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    problems = [{"where": ".".join(_place(e["loc"])), "problem": _problem(e)} for e in error.errors]
    detail = "; ".join(f"{p['where']}: {p['problem']}" for p in problems)
    return _answer(request, 422, detail, errors=problems)


def _place(location: tuple[Any, ...]) -> list[str]:
    """Where the value stood, without the names of our own function arguments."""
    own = 2 if location[0] == "body" and len(location) > 2 else 1
    return [str(part) for part in (location[:1] + location[own:])]


def _problem(error: dict[str, Any]) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


@api.exception_handler(Exception)
def _unforeseen(request: HttpRequest, error: Exception) -> HttpResponse:
    """The edge of the API: a mistake of ours is logged whole and answered without its inside."""
    logger.error("the API failed at %s", request.path, exc_info=error)
    return _answer(request, 500, "something went wrong on our side; it was logged")


api.add_router("", traces_router)
api.add_router("", acts_router)
api.add_router("", anchors_router)
api.add_router("", transfer_router)
api.add_router("", lab_router)
api.add_router("", tree_router)
api.add_router("", verdicts_router)
api.add_router("", goals_router)
api.add_router("", skills_router)
