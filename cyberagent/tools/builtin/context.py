"""``get_current_context``: what the run looks like now, for a model that has been at work a while;
``read_context_ref``: what its parent handed down for it to read.

The framework calls it every few iterations; the model may call it at any time. Whoever embeds
the engine adds to it by *context providers*: callables that are given :class:`PublicState` and
return ``(title, text)`` or None, found under the entry point group ``cyberagent.context`` or put
on the run's state. Source: docs/tools.md, "get_current_context".
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from cyberagent.core.errors import InvalidInput, RefRefused
from cyberagent.core.ports import ToolContext
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.refs import MAX_SNAPSHOT_CHARS, ContextRef
from cyberagent.core.types import Json, canonical_json
from cyberagent.core.wording import label
from cyberagent.tools.builtin.standing import task_sections
from cyberagent.tools.registry import tool

log = logging.getLogger(__name__)

ENTRY_POINTS = "cyberagent.context"
PROVIDER_SECONDS = 2.0
PROVIDER_CHARS = 2_000
MAX_NOTIFICATIONS = 20
MAX_NOTIFICATION_CHARS = 500
MAX_COLLABORATORS = 50
REF_SLICE_CHARS = 8_000
"""Characters of a ContextRef that one call reads, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class PublicState:
    """What a context provider may know of a run. ``goals`` is the plan as JSON."""

    trace_id: str
    goals: Json
    workspace: Path | None
    language: str
    now: str


Provided = tuple[str, str] | None
ContextProvider = Callable[[PublicState], Provided | Awaitable[Provided]]


def registered_providers() -> list[ContextProvider]:
    """The providers of installed packages, in the order of their names; one that cannot be
    imported is logged and left out."""
    found: list[ContextProvider] = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            found.append(point.load())
        except Exception:
            log.exception("the context provider %s cannot be loaded", point.name)
    return found


@tool(framework=True, read_only=True)
async def get_current_context(context: ToolContext) -> str:
    """See where the work stands: the time, your plan and its focus, collaborators, news.

    The framework also calls this for you from time to time.
    """
    state, language = context.state, context.config.language
    now = context.now or datetime.now(UTC).isoformat(timespec="seconds")
    title = f"{label(language, 'context_title')}\n{label(language, 'context_time')}: {now}"
    sections = [title, *task_sections(state, language), _plan(state.goals, language)]
    sections.append(_collaborators(state.collaborators, language))
    sections.append(_notifications(state.notifications, language))
    public = PublicState(context.trace_id, state.goals.to_json(), context.workspace, language, now)
    providers: list[ContextProvider] = state.context_providers
    answers = await asyncio.gather(*(_ask(p, public) for p in providers))
    for provider, answer in zip(list(providers), answers, strict=True):
        sections.append(_provided(answer, language))
        if isinstance(answer, TimeoutError):
            # It may still be running; a second call of it would only pile up.
            providers.remove(provider)
    return "\n\n".join(s for s in sections if s)


def _plan(goals: Any, language: str) -> str:
    plan = goals.to_prompt(language=language)
    done, total = goals.progress()
    if goals.current:
        goal = goals.get(goals.current)
        reminder = label(language, "context_focus").format(id=goal.id, text=goal.description)
    elif not goals.to_json()["goals"]:
        reminder = label(language, "context_no_goals")
    else:
        reminder = label(language, "context_finished" if done == total else "context_no_focus")
    return f"{plan}\n\n{reminder}"


def _collaborators(collaborators: list[tuple[str, str, str]], language: str) -> str:
    if not collaborators:
        return ""
    lines = [
        f"- {id}: {_short(mission, MAX_NOTIFICATION_CHARS, language)} ({status})"
        for id, mission, status in collaborators[-MAX_COLLABORATORS:]
    ]
    if more := len(collaborators) - len(lines):
        lines.insert(0, f"- … +{more}")
    return "\n".join([label(language, "context_collaborators"), *lines])


def _notifications(notifications: list[str], language: str) -> str:
    """The oldest notifications; they are taken off the list, the others come next time."""
    taken = notifications[:MAX_NOTIFICATIONS]
    if not taken:
        return ""
    del notifications[: len(taken)]
    lines = [f"- {_short(n, MAX_NOTIFICATION_CHARS, language)}" for n in taken]
    return "\n".join([label(language, "context_notifications"), *lines])


def _short(text: str, most: int, language: str) -> str:
    if len(text) <= most:
        return text
    return text[:most] + " " + label(language, "context_cut").format(count=len(text) - most)


# Providers -----------------------------------------------------------------------------------


async def _ask(provider: ContextProvider, public: PublicState) -> Provided | Exception:
    """What a provider says; its error or TimeoutError as a value, logged."""
    try:
        async with asyncio.timeout(PROVIDER_SECONDS):
            if inspect.iscoroutinefunction(provider):
                return _checked(await provider(public))
            return _checked(await _in_thread(provider, public))
    except TimeoutError as error:
        log.warning("the context provider %r took more than %g s", provider, PROVIDER_SECONDS)
        return error
    except Exception as error:  # The edge to other packages' code: it must not break the run.
        log.exception("the context provider %r failed", provider)
        return error


async def _in_thread(provider: ContextProvider, public: PublicState) -> object:
    """Call a provider in a thread of its own. Not the loop's pool: a thread cannot be stopped,
    and providers that hang would use up the pool that all tools share."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()

    def settle(result: object, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = provider(public)
        except Exception as error:  # noqa: BLE001 - handed to the waiting side, as it is
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="context-provider", daemon=True).start()
    result = await future
    return await result if inspect.isawaitable(result) else result


def _checked(value: object) -> Provided:
    if value is None:
        return None
    if isinstance(value, tuple):
        pair = cast("tuple[object, ...]", value)
        if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str):
            return pair[0], pair[1]
    raise TypeError("a context provider must return (title, text) or None")


def _provided(answer: Provided | Exception, language: str) -> str:
    if answer is None:
        return ""
    if isinstance(answer, Exception):
        return label(language, "context_failed").format(why=type(answer).__name__)
    title, text = answer
    return f"## {' '.join(title.split())[:80]}\n{_short(text, PROVIDER_CHARS, language)}"


# ContextRefs ---------------------------------------------------------------------------------


@tool(framework=True, read_only=True, idempotent=True, parallel_safe=True)
def read_context_ref(
    context: ToolContext,
    ref_id: str,
    version: str,
    offset: int = 0,
    limit: int = REF_SLICE_CHARS,
) -> str:
    """Read a context ref that was handed down to you, whole or a slice of it.

    The refs that you hold are listed in get_current_context; both values must be given exactly
    as they stand there. The first line of the result says which characters follow.

    Args:
        ref_id: The ref's id.
        version: The ref's version, all 64 digits.
        offset: Characters to pass over.
        limit: Characters to read, 16000 at most.
    """
    state: ProtocolState | None = context.state.protocol
    if state is None:
        raise RefRefused("this run holds no context refs")
    snapshot = state.catalogue.get(ContextRef(ref_id.strip(), version.strip())).snapshot
    total = len(snapshot.text)
    if not 1 <= limit <= MAX_SNAPSHOT_CHARS:
        raise InvalidInput(f"limit must be from 1 to {MAX_SNAPSHOT_CHARS}, not {limit}")
    if not 0 <= offset < total:
        raise InvalidInput(f"offset must be from 0 to {total - 1}, not {offset}")
    end = min(offset + limit, total)
    head = {
        "ref_id": ref_id.strip(),
        "kind": snapshot.kind,
        "from": offset,
        "to": end,
        "characters": total,
    }
    return f"{canonical_json(head).decode()}\n{snapshot.text[offset:end]}"
