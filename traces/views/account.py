"""Signing in and out, and one's own API tokens. Source: docs/access.md."""

from __future__ import annotations

from django.contrib.auth import login
from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from cyberagent.core.errors import InvalidInput
from traces import access
from traces.models import ApiToken
from traces.views.base import acted, html, page


class SignIn(auth_views.LoginView):
    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """A link preview only GETs, so that GET uses nothing up; the page's one button POSTs."""
    if request.method != "POST":
        return html(request, "registration/link.html")
    user = access.use_sign_in_link(token)
    if user is None:
        return html(request, "registration/link.html", {"spent": True}, status=410)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("runs")


@method_decorator(login_not_required, name="dispatch")
class SignOut(auth_views.LogoutView):
    pass


@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """The list; POST makes a token, whose text is on this one answer and never again."""
    assert isinstance(request.user, AbstractUser)
    context: dict[str, object] = {}
    status = 200
    if request.method == "POST":
        try:
            row, context["text"] = access.create_token(request.user, request.POST.get("name", ""))
            context["created"] = row
        except InvalidInput as error:
            context |= {"error": str(error), "name": request.POST.get("name", "")}
            status = 422
    context["tokens"] = ApiToken.objects.filter(user=request.user).order_by("-created_at")
    answer = html(request, "traces/tokens.html", context, status)
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
@page
def revoke_token(request: HttpRequest, token: int) -> HttpResponse:
    told = _("The token is revoked.")
    return acted(request, lambda: access.revoke_token(request.user, token), told, "tokens")
