"""The lab for pages: a replay may take seconds, so it runs in a thread while the page asks how
far it is. One replay at a time in each process; results are kept for the newest few.

Source: docs/pages.md, "Lab".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import connections

from cyberagent.compaction.lab import Report
from cyberagent.core.errors import Conflict, CyberAgentError
from traces.lab import LabResult, lab
from traces.models import Trace

MOST_WAITING = 4
"""Replays that wait or run; who comes then is told to come again."""

MOST_KEPT = 32

MOST_MESSAGES = 50_000
"""A longer trace takes minutes: it is for the terminal."""


@dataclass(slots=True)
class Job:
    """A replay asked for. ``reports`` grow as policies end; then ``result``, or ``error`` in the
    domain's words. ``event``: the trace's newest event when it began; ``thread`` does it."""

    trace: str
    policies: tuple[str, ...]
    window: int | None
    event: int = 0
    reports: list[Report] = field(default_factory=list[Report])
    result: LabResult | None = None
    error: str = ""
    thread: threading.Thread = field(default_factory=threading.Thread)

    @property
    def over(self) -> bool:
        return self.result is not None or bool(self.error)


_Key = tuple[str, tuple[str, ...], int | None]
_jobs: OrderedDict[_Key, Job] = OrderedDict()
_jobs_lock = threading.Lock()
_one_at_a_time = threading.Lock()


def job_for(trace: Trace, policies: Sequence[str], window: int | None, *, anew: bool) -> Job:
    """The replay of a trace under these policies: the one that runs or is done, else a new one.
    ``anew``: one that is done counts only if nothing has happened in the trace since. Raises
    Conflict where too many wait or the trace is too long."""
    key = (trace.pk, tuple(policies), window)
    with _jobs_lock:
        found = _jobs.get(key)
        if found and not (anew and found.over and found.event != trace.last_event):
            return found
        if trace.head_depth > MOST_MESSAGES:
            raise Conflict(
                f"{trace.head_depth:,} messages are too many for the page; "
                f"use manage.py lab {trace.pk}"
            )
        if sum(not job.over for job in _jobs.values()) >= MOST_WAITING:
            raise Conflict("the lab is busy with other replays; try again in a minute")
        job = _jobs[key] = Job(*key, event=trace.last_event)
        _jobs.move_to_end(key)
        job.thread = threading.Thread(target=_work, args=(trace, job), name="lab", daemon=True)
        for old in [k for k, j in _jobs.items() if j.over][: max(0, len(_jobs) - MOST_KEPT)]:
            del _jobs[old]
    job.thread.start()
    return job


def _work(trace: Trace, job: Job) -> None:
    try:
        with _one_at_a_time:
            job.result = lab(trace, job.policies, job.window, job.reports.append)
    except CyberAgentError as error:
        job.error = str(error)
    except Exception:  # edge of the thread: whoever waits must be told; the log has the rest
        job.error = "the replay failed; the server's log says why"
        raise
    finally:
        connections.close_all()
