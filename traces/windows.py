"""The window of a stored call, for pages, API and terminal. Source: docs/windows.md."""

from __future__ import annotations

from dataclasses import dataclass

from asgiref.sync import async_to_sync

from cyberagent.core.rebuild import Difference, Rebuilt, difference, rebuilt
from cyberagent.providers.projections import PROJECTIONS
from traces.models import Trace
from traces.store import OrmStore


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """A call's window as rebuilt now, beside that of the call before it (None: the first, or
    not asked for)."""

    now: Rebuilt
    before: Rebuilt | None = None
    difference: Difference | None = None

    @property
    def payload(self) -> bytes:
        """The canonical payload as rebuilt."""
        return self.now.body

    @property
    def sha256(self) -> str:
        """The hash of the bytes that were sent."""
        return self.now.record.sha256

    @property
    def holds(self) -> bool:
        """Whether the rebuilt payload has that hash."""
        return self.now.holds


def window_of(trace: Trace, number: int, *, compare: bool = False) -> WindowView:
    """Call ``number`` of a trace; ``compare``: also against the call before. Raises NotFound,
    BrokenManifest."""
    return async_to_sync(_window_of)(trace.pk, number, compare)


async def _window_of(trace_id: str, number: int, compare: bool) -> WindowView:
    store = OrmStore()
    now = await rebuilt(store, trace_id, number, PROJECTIONS)
    if not compare or number == 1:
        return WindowView(now=now)
    before = await rebuilt(store, trace_id, number - 1, PROJECTIONS)
    return WindowView(now=now, before=before, difference=difference(before.window, now.window))
