"""Telling whoever drives runs that one is due. Source: docs/running.md, "Who drives"."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)

_wakers: list[Callable[[], None]] = []


def on_queued(wake: Callable[[], None]) -> Callable[[], None]:
    """Have ``wake()`` called, from any thread, when a run is queued in this process. Returns
    what ends that."""
    _wakers.append(wake)
    return lambda: _wakers.remove(wake)


def queue(trace_id: str) -> None:
    """See to it that the trace is driven soon: now where runs are driven in this process, else
    by a worker. A lost call delays a run and never loses it: what is due is looked for too."""
    if settings.RUNS_EMBEDDED:
        for wake in list(_wakers):
            wake()
        return
    from traces.tasks import drive_trace  # the worker's side; Celery is not needed without it

    try:
        drive_trace.delay(trace_id)
    except OperationalError as error:
        log.warning("run %s waits until the queue can be reached: %s", trace_id, error)


def queue_after_commit(trace_id: str) -> None:
    transaction.on_commit(lambda: queue(trace_id))
