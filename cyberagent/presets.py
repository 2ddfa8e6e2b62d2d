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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from cyberagent.compaction.policy import policy_for
from cyberagent.compaction.stage import CompactionStage
from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.errors import InvalidConfig
from cyberagent.core.family import AgentKind, Heard
from cyberagent.core.parts import DEFAULT_RETRY, Parts
from cyberagent.core.ports import Control, Skill, Store
from cyberagent.core.prompt import build_system_prompt
from cyberagent.core.recovery import RetryPolicy
from cyberagent.core.runner import AgentRunner
from cyberagent.core.tokens import counter_for
from cyberagent.core.tree import TreeBudget
from cyberagent.core.wording import wording
from cyberagent.providers import local
from cyberagent.providers.choosing import make_provider
from cyberagent.tools.builtin import ALL_TOOLS
from cyberagent.tools.builtin.context import registered_providers
from cyberagent.tools.registry import Registry
from cyberagent.tools.skills import builtin_skills
from cyberagent.tools.workspace import read_bytes
from cyberagent.trace.goals import replay

# Presets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """``tools``: names offered to the model, in this order; ``policy``: how its windows are
    kept small; ``limits``: what a turn may use; ``wording``: the text that tells it who it is, ""
    for the one of all; ``recursive``: it follows the recursive task protocol; ``offered``:
    whether people start runs with it (else only the framework does)."""

    name: str
    label: str
    tools: tuple[str, ...]
    policy: str = "cyber"
    limits: Limits = field(default_factory=Limits)
    wording: str = ""
    recursive: bool = False
    offered: bool = True


_PLANNING = ("goal", "get_current_context", "compress_context", "skill")
_TODOS = ("todo_write", "get_current_context", "compress_context", "skill")
_WRITING = ("write_file", "edit_file")
_READING = ("read_file", "glob_files", "search_files", "terminal")
_ASKING = ("explore", "delegate_research", "read_conclusion")
_PROTOCOL = ("agent", "review_child", "read_context_ref")

PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset(
            name="cyber",
            label="Long work with a plan: reads and writes files in its workspace",
            tools=(*_PLANNING, *_ASKING, *_READING, *_WRITING),
        ),
        Preset(
            name="recursive",
            label="Work shared out to sub-agents under one root task, each result validated",
            tools=(*_PLANNING, *_PROTOCOL, *_ASKING, *_READING, *_WRITING),
            limits=Limits(max_tree_steps=1_000),
            recursive=True,
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
            wording="explore_agent",
        ),
        Preset(
            name="validator",
            label="Judges the work of another agent by its packet alone",
            tools=(),
            policy="off",
            limits=Limits(max_steps=2),
            wording="validator",
            offered=False,
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
    "AGENT_MAX_TREE_STEPS": ("max_tree_steps", int),
    "AGENT_VALIDATOR_TIMEOUT_SECS": ("validator_timeout_seconds", float),
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


# A runner ------------------------------------------------------------------------------------


def system_prompt(config: RunConfig, skills: Mapping[str, Skill]) -> str:
    """The system prompt of a new trace with these settings."""
    preset = preset_named(config.preset)
    own = wording(config.language, preset.wording) if preset.wording else None
    if own and not preset.tools:
        return own  # it does nothing but answer
    return build_system_prompt(
        configured=config.system_prompt,
        preset=own,
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
    control_for: Callable[[str], Control] | None = None,
    heard: Heard | None = None,
    kind: AgentKind | None = None,
    tree: TreeBudget | None = None,
) -> AgentRunner:
    """A runner for ``config`` (see :func:`resolve`). ``environment`` holds the providers' keys
    and FALLBACK_MODEL; ``control_for`` and ``heard``: see :class:`Parts`; ``kind`` and ``tree``
    are given for a sub-agent. Raises InvalidConfig, NotFound or InvalidScript for what cannot
    work."""
    known = builtin_skills() if skills is None else skills
    role = kind or ""
    fallback_model = environment.get("FALLBACK_MODEL", "")
    has_fallback = bool(fallback_model) and config.provider in ("openai", "anthropic")
    fallback = None
    if has_fallback:
        fallback = await make_provider(config, store, environment, fallback_model, role)
    spawning = Spawning(store, environment, known, owner, control_for, heard)
    return AgentRunner(
        Parts(
            store=store,
            provider=await make_provider(config, store, environment, config.model, role),
            tools=tools_for(config),
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
            recursive=preset_named(config.preset).recursive,
            spawner=spawning,
            tree=tree,
            control_for=control_for,
            heard=heard,
        )
    )


async def validate(config: RunConfig, *, store: Store, environment: Mapping[str, str]) -> None:
    """Raise InvalidConfig, InvalidScript or NotFound where ``config``, or the validator that it
    names, could not run."""
    config = resolve(config, environment)
    runner = await build_runner(config, store=store, environment=environment)
    await runner.aclose()
    if preset_named(config.preset).recursive:
        judge = validator_config(config, environment)
        await (await make_provider(judge, store, environment, judge.model)).aclose()


# Sub-agents ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawning:
    """What sub-agents are made of: see :class:`cyberagent.core.family.Spawner`."""

    store: Store
    environment: Mapping[str, str]
    skills: Mapping[str, Skill]
    owner: str
    control_for: Callable[[str], Control] | None
    heard: Heard | None

    def settings(self, kind: AgentKind, parent: RunConfig) -> RunConfig:
        if kind == "validator":
            return validator_config(parent, self.environment)
        if kind == "agent":
            # Frozen here: what a preset offers later must not change a child at work.
            names = (*preset_named(parent.preset).tools, "submit_report")
            tools = parent.tools or names
            tools = tools if "submit_report" in tools else (*tools, "submit_report")
            return parent.with_(tools=tools, system_prompt=None)
        tools = preset_named("explore").tools
        if parent.tools is not None:  # it may do no more than the run that asks it
            tools = tuple(t for t in tools if t in parent.tools or t in _PLANNING)
        return resolve(_bare(parent, "explore").with_(tools=tools), self.environment)

    def system_prompt(self, config: RunConfig) -> str:
        return system_prompt(config, self.skills)

    async def runner(
        self, kind: AgentKind, config: RunConfig, control: Control, tree: TreeBudget
    ) -> AgentRunner:
        return await build_runner(
            config,
            store=self.store,
            environment=self.environment,
            control=control,
            skills=self.skills,
            owner=self.owner,
            control_for=self.control_for,
            heard=self.heard,
            kind=kind,
            tree=tree,
        )

    def read(self, config: RunConfig, path: str) -> bytes:
        return read_bytes(Path(config.workspace) if config.workspace else None, path)


def validator_config(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """The settings of the validator of a run with the settings ``config``."""
    chosen = config.validator
    other = bool(chosen.get("provider")) and chosen["provider"] != config.provider
    bare = _bare(config, "validator").with_(
        provider=chosen.get("provider") or config.provider,
        model=str(chosen.get("model") or ("" if other else config.model)),
        context_window=None if other or chosen.get("model") else config.context_window,
        provider_options=chosen.get("provider_options")
        or ({} if other else config.provider_options),
        workspace="",
    )
    return resolve(bare, environment)


def _bare(config: RunConfig, preset: str) -> RunConfig:
    """The settings of a sub-agent with a preset of its own: the model and the account of the run
    above it, and nothing else."""
    return RunConfig(
        provider=config.provider,
        model=config.model,
        preset=preset,
        context_window=config.context_window,
        max_output_tokens=config.max_output_tokens,
        workspace=config.workspace,
        language=config.language,
        children=config.children,
        limits=Limits(max_cost=config.limits.max_cost, max_tree_steps=config.limits.max_tree_steps),
        provider_options=config.provider_options,
    )
