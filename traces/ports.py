"""What hangs on traces without traces knowing it: goal rows and skills sign up here.

Both apps import this one, never the other way round. Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cyberagent.core.ports import Skill
from cyberagent.core.types import Json

GoalsListener = Callable[[str, Mapping[str, Json]], None]
SkillSource = Callable[[], dict[str, Skill]]

_goals_listeners: list[GoalsListener] = []
_skill_sources: list[SkillSource] = []


def on_goals_changed(listener: GoalsListener) -> None:
    """Have ``listener(trace_id, goals)`` called whenever a plan changes, in the transaction
    that stores the change. ``goals``: a GoalTree as JSON."""
    if listener not in _goals_listeners:
        _goals_listeners.append(listener)


def goals_changed(trace_id: str, goals: Mapping[str, Json]) -> None:
    for listener in _goals_listeners:
        listener(trace_id, goals)


def skills_from(source: SkillSource) -> None:
    """Have runs ask ``source()`` which skills there are; a later source wins."""
    if source not in _skill_sources:
        _skill_sources.append(source)


def current_skills() -> dict[str, Skill]:
    """The skills of this moment by name. May write rows: to be called in a transaction."""
    return {name: skill for source in _skill_sources for name, skill in source().items()}
