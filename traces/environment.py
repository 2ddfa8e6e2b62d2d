"""What the settings read from the process's environment for runs. Source: docs/settings.md."""

from __future__ import annotations

from django.conf import settings


def environment() -> dict[str, str]:
    """Under the variables' own names."""
    limits = {
        name: str(settings.AGENT_LIMITS[field])
        for name, (field, _) in settings.AGENT_VARIABLES.items()
        if field in settings.AGENT_LIMITS
    }
    fallback = {"FALLBACK_MODEL": settings.FALLBACK_MODEL} if settings.FALLBACK_MODEL else {}
    return settings.PROVIDER_ENV | limits | fallback
