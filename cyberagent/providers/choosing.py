"""Which model APIs there are on this machine, and the one that a config names.

Source: docs/providers.md, docs/settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig
from cyberagent.core.ports import Provider, Store
from cyberagent.core.types import Json
from cyberagent.providers import local
from cyberagent.providers.anthropic import AnthropicProvider
from cyberagent.providers.openai import OpenAIProvider
from cyberagent.providers.replay import ReplayProvider, model_turns
from cyberagent.providers.scripted import ScriptedProvider, load_script


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatus:
    """A provider on this machine: ``needs`` says what is missing, "" when it is usable.
    ``model``: the one that is asked where none is named."""

    name: str
    label: str
    usable: bool
    needs: str = ""
    model: str = ""
    needs_model: bool = False


def provider_status(environment: Mapping[str, str]) -> list[ProviderStatus]:
    """Every provider, usable or not, in the order in which forms offer them."""
    openai = bool(environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL"))
    anthropic = bool(environment.get("ANTHROPIC_API_KEY") or environment.get("ANTHROPIC_BASE_URL"))
    missing = local.available()
    return [
        ProviderStatus(
            name="openai",
            label="OpenAI and compatible endpoints",
            usable=openai,
            needs="" if openai else "Set OPENAI_API_KEY, or OPENAI_BASE_URL for another endpoint.",
            needs_model=True,
        ),
        ProviderStatus(
            name="anthropic",
            label="Anthropic",
            usable=anthropic,
            needs="" if anthropic else "Set ANTHROPIC_API_KEY.",
            needs_model=True,
        ),
        ProviderStatus(
            name="local",
            label="A small model on this machine (a few words a second; not clever)",
            usable=missing is None,
            needs=missing or "",
            model=local.MODEL,
        ),
        ProviderStatus(
            name="scripted", label="Scripted: plays a written script, tools run", usable=True
        ),
        ProviderStatus(
            name="replay", label="Replay: plays the model's turns of another run", usable=True
        ),
    ]


async def make_provider(
    config: RunConfig,
    store: Store,
    environment: Mapping[str, str],
    model: str,
    kind: str = "",
) -> Provider:
    """The provider of ``config``, asked for ``model``. ``kind``: of the sub-agent that asks, ""
    for a run of its own. Raises InvalidConfig, InvalidScript, NotFound."""
    options = dict(config.provider_options)
    _check_usable(config, environment)
    if config.provider == "scripted":
        script = load_script(options.get("script") or "demo")
        return ScriptedProvider(script, speed=options.get("speed"), kind=kind)
    if config.provider == "replay":
        return await _replay(options, store)
    if config.provider == "local":
        return local.LocalProvider()
    if not model:
        raise InvalidConfig(f"the provider {config.provider} needs the name of a model")
    prefix = config.provider.upper()
    given: dict[str, Any] = {
        "model": model,
        "api_key": environment.get(f"{prefix}_API_KEY", ""),
        "prices": options.get("prices"),
    }
    own_address = options.get("base_url")
    if base_url := own_address or environment.get(f"{prefix}_BASE_URL"):
        given["base_url"] = base_url
    if own_address and own_address != environment.get(f"{prefix}_BASE_URL"):
        # The key belongs to the environment's endpoint; an address that came with a run's
        # settings must not be sent it.
        given["api_key"] = ""
    if config.provider == "anthropic":
        return AnthropicProvider(**given)
    return OpenAIProvider(**given, dialect=options.get("dialect") or "openai")


def _check_usable(config: RunConfig, environment: Mapping[str, str]) -> None:
    """Raise InvalidConfig for a provider that there is not, or that lacks what it needs; one
    with an address of its own may need no key."""
    known = {p.name: p for p in provider_status(environment)}
    status = known.get(config.provider)
    if status is None:
        names = ", ".join(known)
        raise InvalidConfig(f"there is no provider {config.provider!r}; there are {names}")
    if not status.usable and not config.provider_options.get("base_url"):
        raise InvalidConfig(f"the provider {config.provider} cannot be used: {status.needs}")


async def _replay(options: Mapping[str, Json], store: Store) -> Provider:
    trace_id = options.get("trace")
    if not trace_id:
        raise InvalidConfig("the provider replay needs a trace: the run whose turns it plays")
    path = await store.path(str(trace_id))
    return ReplayProvider(model_turns(path), speed=float(options.get("speed") or 0))
