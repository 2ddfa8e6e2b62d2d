"""Preset name → the parts of a runner. Library users start here.

    store = InMemoryStore()
    config = RunConfig(provider="openai", model="gpt-5", workspace=".")
    runner = await build_runner(config, store=store, environment=os.environ)
    async for event in runner.run([{"role": "user", "content": "…"}], config):
        ...

Which provider, tools, numbers and prompt a name means is decided in this module and nowhere
else. Source: docs/settings.md, "Presets".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cyberagent.compaction.policy import policy_for
from cyberagent.compaction.stage import CompactionStage
from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.errors import InvalidConfig
from cyberagent.core.parts import DEFAULT_RETRY, Parts
from cyberagent.core.ports import Control, Provider, Skill, Store
from cyberagent.core.prompt import build_system_prompt
from cyberagent.core.recovery import RetryPolicy
from cyberagent.core.runner import AgentRunner
from cyberagent.core.tokens import counter_for
from cyberagent.core.types import Json
from cyberagent.providers import local
from cyberagent.providers.anthropic import AnthropicProvider
from cyberagent.providers.openai import OpenAIProvider
from cyberagent.providers.replay import ReplayProvider, model_turns
from cyberagent.providers.scripted import ScriptedProvider, load_script
from cyberagent.tools.builtin import ALL_TOOLS
from cyberagent.tools.builtin.context import registered_providers
from cyberagent.tools.registry import Registry
from cyberagent.tools.skills import builtin_skills
from cyberagent.trace.goals import replay

# Presets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """``tools``: names offered to the model, in this order; ``policy``: how its windows are
    kept small; ``limits``: what a turn may use."""

    name: str
    label: str
    tools: tuple[str, ...]
    policy: str = "cyber"
    limits: Limits = field(default_factory=Limits)


_PLANNING = ("goal", "get_current_context", "compress_context", "skill")
_TODOS = ("todo_write", "get_current_context", "compress_context", "skill")
_WRITING = ("write_file", "edit_file")
_READING = ("read_file", "glob_files", "search_files", "terminal")

PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset(
            name="cyber",
            label="Long work with a plan: reads and writes files in its workspace",
            tools=(*_PLANNING, *_READING, *_WRITING),
        ),
        Preset(
            name="layered",
            label="Short turns with a todo list; five layers of compaction",
            tools=(*_TODOS, *_READING, *_WRITING),
            policy="layered",
            limits=Limits(
                max_steps=8, max_messages=50, token_soft_limit=32_000, token_hard_limit=40_000
            ),
        ),
        Preset(
            name="opencode",
            label="A todo list; old tool output is pruned, then all is summarised",
            tools=(*_TODOS, *_READING, *_WRITING),
            policy="opencode",
        ),
        Preset(
            name="explore",
            label="Questions about files: reads, never writes",
            tools=(*_PLANNING, *_READING),
            limits=Limits(max_steps=60),
        ),
    )
}

_LIMIT_VARIABLES: dict[str, tuple[str, type[int] | type[float]]] = {
    "AGENT_MAX_STEPS": ("max_steps", int),
    "AGENT_TOOL_TIMEOUT_SECS": ("tool_timeout_seconds", float),
    "AGENT_MAX_TOOL_OUTPUT_CHARS": ("max_tool_output_chars", int),
    "AGENT_MAX_MESSAGES": ("max_messages", int),
    "AGENT_TOKEN_SOFT_LIMIT": ("token_soft_limit", int),
    "AGENT_TOKEN_HARD_LIMIT": ("token_hard_limit", int),
    "AGENT_MAX_COST": ("max_cost", float),
}


def preset_named(name: str) -> Preset:
    """Raises InvalidConfig, naming the presets there are."""
    if name not in PRESETS:
        raise InvalidConfig(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def resolve(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """``config`` with what it leaves open filled in: policy, limits (the preset's numbers, over
    them the environment's, over them its own), and the context window where the provider's is
    known or has to be assumed. Raises InvalidConfig, naming the setting."""
    preset = preset_named(config.preset)
    limits = {f.name: getattr(preset.limits, f.name) for f in fields(Limits)}
    for variable, (name, number) in _LIMIT_VARIABLES.items():
        if text := environment.get(variable):
            try:
                limits[name] = number(text)
            except ValueError:
                raise InvalidConfig(f"{variable} must be a number, not {text!r}") from None
    default = Limits()
    for f in fields(Limits):
        own = getattr(config.limits, f.name)
        if own != getattr(default, f.name):
            limits[f.name] = own
    config = config.with_(
        limits=Limits(**limits),
        policy=config.policy or preset.policy,
        context_window=config.context_window or _WINDOWS.get(config.provider),
    )
    policy_for(config)
    return config


ASSUMED_WINDOW = 128_000
"""Tokens of a model's window where nobody said how many: better too small than never to
compact, and a window can be set."""

_WINDOWS = {
    "openai": ASSUMED_WINDOW,
    "anthropic": ASSUMED_WINDOW,
    "local": local.CONTEXT_WINDOW,
}


# Providers -----------------------------------------------------------------------------------


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


async def _make_provider(
    config: RunConfig, store: Store, environment: Mapping[str, str], model: str
) -> Provider:
    options = dict(config.provider_options)
    _check_usable(config, environment)
    if config.provider == "scripted":
        script = load_script(options.get("script") or "demo")
        return ScriptedProvider(script, speed=options.get("speed"))
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


# A runner ------------------------------------------------------------------------------------


def system_prompt(config: RunConfig, skills: Mapping[str, Skill]) -> str:
    """The system prompt of a new trace with these settings."""
    return build_system_prompt(
        configured=config.system_prompt,
        tools=tools_for(config).index(),
        skills=skills,
        language=config.language,
    )


def tools_for(config: RunConfig) -> Registry:
    """The tools that a run with these settings is offered."""
    names: Sequence[str] = preset_named(config.preset).tools
    if config.tools is not None:
        names = config.tools
    return Registry(ALL_TOOLS).only(names)


def compaction_for(config: RunConfig) -> CompactionStage:
    """What keeps the windows of a run with these settings small."""
    counter = counter_for(config.provider, config.model)
    return CompactionStage(counter, tools_for(config).schemas())


async def build_runner(
    config: RunConfig,
    *,
    store: Store,
    environment: Mapping[str, str],
    control: Control | None = None,
    skills: Mapping[str, Skill] | None = None,
    owner: str = "",
) -> AgentRunner:
    """A runner for ``config`` (see :func:`resolve`). ``environment`` holds the providers' keys
    and FALLBACK_MODEL. Raises InvalidConfig, NotFound or InvalidScript for what cannot work."""
    known = builtin_skills() if skills is None else skills
    fallback_model = environment.get("FALLBACK_MODEL", "")
    has_fallback = bool(fallback_model) and config.provider in ("openai", "anthropic")
    fallback = None
    if has_fallback:
        fallback = await _make_provider(config, store, environment, fallback_model)
    tools = tools_for(config)
    return AgentRunner(
        Parts(
            store=store,
            provider=await _make_provider(config, store, environment, config.model),
            tools=tools,
            counter=counter_for(config.provider, config.model),
            compaction=compaction_for(config),
            replay=replay,
            system_prompt=system_prompt(config, known),
            skills=known,
            control=control,
            fallback=fallback,
            retry=RetryPolicy(fallback_after=3) if has_fallback else DEFAULT_RETRY,
            context_providers=registered_providers(),
            owner=owner,
        )
    )


async def validate(config: RunConfig, *, store: Store, environment: Mapping[str, str]) -> None:
    """Raise InvalidConfig, InvalidScript or NotFound where ``config`` could not run."""
    config = resolve(config, environment)
    runner = await build_runner(config, store=store, environment=environment)
    await runner.parts.provider.aclose()
