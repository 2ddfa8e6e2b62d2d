"""Projections by the name that each stored call carries: any call can be rebuilt without the
provider that made it. An old version stays here for as long as calls name it.
Source: docs/providers.md, "Projections"."""

from __future__ import annotations

from collections.abc import Callable

from cyberagent.core.types import Json
from cyberagent.core.window import Window
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.openai import project_openai

PROJECTIONS: dict[str, Callable[[Window], dict[str, Json]]] = {
    "openai/1": project_openai,
    "anthropic/1": project_anthropic,
}
