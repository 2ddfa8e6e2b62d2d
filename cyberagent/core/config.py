"""RunConfig: what one run is told, checked once, frozen. Source: docs/settings.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast

from cyberagent.core.errors import InvalidConfig
from cyberagent.core.types import Json

Children = Literal["serial", "parallel"]
GoalCompression = Literal["none", "on_complete", "on_overflow"]
PlanInjection = Literal["periodic", "system_tail"]

CONTEXT_INJECTION_INTERVAL = 5
"""Iterations of the main path between two framework-made ``get_current_context`` calls."""

SKILL_RECENCY_THRESHOLD = 10
"""Messages of the submitted list within which an injected skill still counts as recent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run; 0 means "no bound". Seconds and characters as named. ``max_cost`` (US
    dollars) and ``max_tree_steps`` (model answers) count over the run and all its sub-agents."""

    max_steps: int = 200
    tool_timeout_seconds: float = 120.0
    max_tool_output_chars: int = 4_000
    max_messages: int = 0
    token_soft_limit: int = 0
    token_hard_limit: int = 0
    max_cost: float = 0.0
    max_tree_steps: int = 0
    validator_timeout_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of one run. Unset fields (None) are filled from the preset by ``presets``.

    ``provider_options`` are the provider's own (``base_url``, ``dialect``, ``script``, ``speed``
    …); never secrets: keys come from the environment. ``context_window`` and
    ``max_output_tokens`` in tokens; None means unknown, which is not zero. ``children``: whether
    sub-agents of one batch work side by side; ``validator``: ``{provider, model,
    provider_options}`` of the model that validates, the run's own where one is left out.
    """

    provider: str = "scripted"
    model: str = ""
    preset: str = "cyber"
    context_window: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    system_prompt: str | None = None
    goal_compression: GoalCompression = "on_overflow"
    goal_compression_form: Literal["keep_goal_calls", "summary_line"] = "keep_goal_calls"
    policy: str | None = None
    plan_injection: PlanInjection = "periodic"
    tools: tuple[str, ...] | None = None
    workspace: str = ""
    language: Literal["en", "zh"] = "en"
    enable_extraction: bool = False
    enable_completion_extraction: bool = False
    children: Children = "serial"
    validator: Mapping[str, Json] = field(default_factory=dict[str, Json])
    limits: Limits = field(default_factory=Limits)
    provider_options: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def to_json(self) -> dict[str, Json]:
        """Fields that differ from their default, as a JSON object."""
        out: dict[str, Json] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "limits":
                plain = {g.name: getattr(value, g.name) for g in fields(Limits)}
                changed = {k: v for k, v in plain.items() if v != getattr(Limits(), k)}
                if changed:
                    out["limits"] = changed
            elif f.name in ("provider_options", "validator"):
                if value:
                    out[f.name] = dict(value)
            elif value != f.default:
                out[f.name] = list(cast("tuple[Json, ...]", value)) if f.name == "tools" else value
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> RunConfig:
        """The config that :meth:`to_json` wrote. Raises InvalidConfig, naming the field."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise InvalidConfig(f"unknown setting {unknown[0]!r}")
        data: dict[str, Any] = dict(value)
        tools: list[str] | None = data.get("tools")
        try:
            data["limits"] = Limits(**data.get("limits", {}))
        except TypeError as error:
            raise InvalidConfig(f"limits: {error}") from None
        data["tools"] = None if tools is None else tuple(tools)
        return cls(**data).checked()

    def checked(self) -> RunConfig:
        """Self, if every field can work; else InvalidConfig with the field and why."""
        for name in ("context_window", "max_output_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidConfig(f"{name} must be a whole number above 0, not {value!r}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise InvalidConfig(f"temperature must be from 0 to 2, not {self.temperature!r}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidConfig(
                    f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}"
                )
        for name in ("provider_options", "validator"):
            _check_object(name, getattr(self, name))
        for name, value in self.validator.items():
            if name not in _VALIDATOR:
                raise InvalidConfig(f"validator: unknown setting {name!r}")
            if name == "provider_options":
                _check_object("validator.provider_options", value)
            elif not isinstance(value, str):
                raise InvalidConfig(f"validator.{name} must be a text, not {value!r}")
        for f in fields(Limits):
            number = getattr(self.limits, f.name)
            if not isinstance(number, int | float) or isinstance(number, bool) or number < 0:
                raise InvalidConfig(f"limits.{f.name} must be 0 or more, not {number!r}")
        return self

    def with_(self, **changes: Any) -> RunConfig:
        return replace(self, **changes).checked()


_CHOICES: dict[str, tuple[str, ...]] = {
    "goal_compression": ("none", "on_complete", "on_overflow"),
    "goal_compression_form": ("keep_goal_calls", "summary_line"),
    "plan_injection": ("periodic", "system_tail"),
    "language": ("en", "zh"),
    "children": ("serial", "parallel"),
}
_VALIDATOR = ("provider", "model", "provider_options")


def _check_object(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"{name} must be an object, not {value!r}")
