"""The list of runs, and how a new one is started. Source: docs/pages.md, "Runs"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import urlencode
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from cyberagent.compaction.policy import POLICIES
from cyberagent.core.anchor import MAX_ANCHOR_CHARS
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.presets import PRESETS
from cyberagent.providers.choosing import ProviderStatus, provider_status
from traces import access, first_run, listing, starting
from traces.anchor_form import AnchorErrors, anchor_of
from traces.models import Trace, Word
from traces.rows import held
from traces.views.base import html, page, wants_part

PAGE = 50
FILTERS = (
    "status", "preset", "model", "origin", "search", "owner", "verdict", "since", "until",
)  # fmt: skip


@require_safe
def runs(request: HttpRequest) -> HttpResponse:
    """Roots only: sub-agents are found from the run that spawned them."""
    given = {name: request.GET.get(name, "")[:200] for name in FILTERS}
    context: dict[str, Any] = {"given": given, "filtered": any(given.values())}
    try:
        found, following = listing.page(
            access.visible_traces(request.user),
            listing.Filter(**given),
            cursor=request.GET.get("cursor", ""),
            limit=PAGE,
        )
        context |= {"traces": found, "next": following, "query": _query(given, following)}
    except InvalidInput as error:
        context["error"] = str(error)
    context["first"] = not request.GET.get("cursor")
    if wants_part(request):
        return html(request, "traces/_runs_table.html", context)
    visible = access.visible_traces(request.user).order_by()
    origins = sorted(visible.values_list("origin", flat=True).distinct())
    context |= {
        "statuses": Trace.Status.choices,
        "presets": sorted({*PRESETS, given["preset"]} - {""}),
        "origins": origins,
        "owners": _owners(visible),
        "verdicts": Word.choices,
        "can_act": access.has_role(request.user, "operator"),
    }
    return html(request, "traces/runs.html", context)


def _owners(visible: QuerySet[Trace]) -> list[str]:
    """The names of those whose runs the list may show; none where there is but one."""
    names = visible.filter(owner__isnull=False).values_list("owner__username", flat=True)
    found = sorted(held(n) for n in names.distinct())
    return found if len(found) > 1 else []


def _query(given: Mapping[str, str], cursor: str | None) -> str:
    """The next page's query string; empty at the end."""
    if cursor is None:
        return ""
    return urlencode({k: v for k, v in given.items() if v} | {"cursor": cursor})


# Starting ----------------------------------------------------------------------------------

_WHOLE = {"context_window": int, "max_output_tokens": int}
_LIMITS: dict[str, type[int] | type[float]] = {"max_steps": int, "max_cost": float}
_TREE_LIMITS: dict[str, type[int] | type[float]] = {"max_tree_steps": int}

PLAYED = ("scripted", "replay")
"""Providers that say what was written beforehand: none of them can judge."""


@require_http_methods(["GET", "HEAD", "POST"])
@page
def new_run(request: HttpRequest) -> HttpResponse:
    access.require(request.user, "operator")
    given = dict(request.POST.items()) if request.method == "POST" else _first_values()
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            config, shared = run_config(given), bool(given.get("shared"))
            anchor = anchor_of(given) if _is_recursive(given) else None
            trace = starting.start_for(
                request.user, given["mission"], config, shared=shared, anchor=anchor
            )
            return redirect("run", trace.pk)
        except AnchorErrors as error:
            errors |= error.fields
        except FieldError as error:
            errors[error.field] = str(error)
        except access.RoleNeeded as error:  # an operator's role is there: it is about the folder
            errors["workspace"] = str(error)
        except InvalidInput as error:
            errors[_field_of(str(error))] = str(error)
        except NotFound as error:
            errors["trace"] = str(error)
    context = {
        "given": given,
        "errors": errors,
        "providers": offered(),
        "presets": [p for p in PRESETS.values() if p.offered],
        "policies": POLICIES,
        "recursive": next((p for p in PRESETS.values() if p.recursive), None),
        "validators": [p for p in offered() if p.name not in PLAYED],
        "most": MAX_ANCHOR_CHARS,
        "most_shown": f"{MAX_ANCHOR_CHARS:,}",
    }
    return html(request, "traces/new_run.html", context, status=422 if errors else 200)


def _first_values() -> dict[str, str]:
    return {
        "preset": next(iter(PRESETS)),
        "provider": next((p.name for p in offered() if p.usable), ""),
        "trace": "",
        "language": "zh" if (get_language() or "").startswith("zh") else "en",
    }


def offered() -> list[ProviderStatus]:
    return provider_status(settings.PROVIDER_ENV)


class FieldError(InvalidInput):
    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def run_config(given: Mapping[str, str]) -> RunConfig:
    """The form's fields as a RunConfig; empty ones are the preset's to fill. Raises FieldError,
    or InvalidConfig for values that cannot work."""
    if not given.get("mission", "").strip():
        raise FieldError("mission", _("Say what the run is to do."))
    _check_provider(given)
    data: dict[str, Any] = {
        name: value
        for name in ("provider", "model", "preset", "policy", "workspace", "language")
        if (value := given.get(name, "").strip())
    }
    for name, kind in _WHOLE.items():
        if (number := _number(given, name, kind)) is not None:
            data[name] = number
    if (number := _number(given, "temperature", float)) is not None:
        data["temperature"] = number
    if data["provider"] == "replay":
        data["provider_options"] = {"trace": _replayed(given), "speed": REPLAY_SPEED}
    known = _LIMITS
    if _is_recursive(given):
        known = _LIMITS | _TREE_LIMITS
        data |= _of_tree(given)
    limits = {n: v for n, kind in known.items() if (v := _number(given, n, kind)) is not None}
    if limits:
        data["limits"] = limits
    return RunConfig.from_json(data)


def _is_recursive(given: Mapping[str, str]) -> bool:
    """Whether the fields of the root anchor and of sub-agents are shown, and count."""
    preset = PRESETS.get(given.get("preset", ""))
    return preset is not None and preset.recursive


def _of_tree(given: Mapping[str, str]) -> dict[str, Any]:
    """Settings of sub-agents and of the validator."""
    found: dict[str, Any] = {"children": given.get("children") or "serial"}
    names = ("provider", "model")
    own = {n: v for n in names if (v := given.get(f"validator_{n}", "").strip())}
    if provider := own.get("provider"):
        chosen = next((p for p in offered() if p.name == provider and p.name not in PLAYED), None)
        if chosen is None:
            raise FieldError("validator_provider", _("Choose a provider."))
        if not chosen.usable:
            raise FieldError("validator_provider", chosen.needs)
        if chosen.needs_model and "model" not in own and provider != given.get("provider"):
            raise FieldError("validator_model", _("This provider needs the name of a model."))
    return found | ({"validator": own} if own else {})


REPLAY_SPEED = 240
"""Characters a second: fast reading."""


def _replayed(given: Mapping[str, str]) -> str:
    """The run to replay: its id, or its address."""
    told = given.get("trace", "").strip().rstrip("/").rpartition("/")[2]
    if not told:
        raise FieldError("trace", _("Name the run to replay: its id, or its address."))
    return told


def _check_provider(given: Mapping[str, str]) -> None:
    chosen = next((p for p in offered() if p.name == given.get("provider")), None)
    if chosen is None:
        raise FieldError("provider", _("Choose a provider."))
    if not chosen.usable:
        raise FieldError("provider", chosen.needs)
    if chosen.needs_model and not given.get("model", "").strip():
        raise FieldError("model", _("This provider needs the name of a model."))


def _number(given: Mapping[str, str], name: str, kind: type[int] | type[float]) -> float | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        what = _("Write a whole number.") if kind is int else _("Write a number.")
        raise FieldError(name, what) from None


def _field_of(text: str) -> str:
    """Which field the engine's sentence is about: it begins with the setting's name."""
    first = text.split(" ", 1)[0].removeprefix("limits.").rstrip(":")
    known = {
        "mission", "provider", "model", "workspace", "preset", "policy", "temperature", "language",
    }  # fmt: skip
    return first if first in known | set(_WHOLE) | set(_LIMITS) | set(_TREE_LIMITS) else "form"


@require_POST
@page
def demo(request: HttpRequest) -> HttpResponse:
    """A demo by its name: ``demo`` where none is given."""
    access.require(request.user, "operator")
    made = first_run.start_demo(request.user, request.POST.get("name") or "demo")
    return redirect("run", made.pk)
