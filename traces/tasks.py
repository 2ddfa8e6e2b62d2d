"""The Celery side of driving runs. Source: docs/running.md, "Workers"."""

from __future__ import annotations

import asyncio

from celery import shared_task

from traces import live
from traces.runs import drive, new_owner


@shared_task(name="traces.drive")
def drive_trace(trace_id: str) -> str:
    """Drive one run until it ends, pauses or waits. A second task for the same run finds its
    lease taken and does nothing."""
    try:
        return asyncio.run(drive(trace_id, new_owner()))
    finally:
        live.flush()
