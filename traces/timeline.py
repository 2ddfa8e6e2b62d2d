"""The run's calls as one line: how large each window was. Source: docs/pages.md, "Timeline"."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Max, Min, Q

from traces.models import Trace

POINTS = 300
"""Points of the line; a run with more calls is drawn by its largest window of each stretch."""

WIDTH, HEIGHT = 1000, 52


@dataclass(frozen=True, slots=True)
class Line:
    """``path`` and ``area``: for SVG's ``d``, in units of WIDTH × HEIGHT. ``per_point``: calls
    that one point stands for."""

    calls: int
    first: datetime | None
    last: datetime | None
    path: str
    area: str
    ticks: str
    failed: str
    largest: int
    largest_call: int
    per_point: int


def of(trace: Trace) -> Line | None:
    """None where no call was made."""
    count = trace.last_call
    if not count:
        return None
    size = -(-count // POINTS)
    points = list(
        trace.calls.annotate(bucket=(F("number") - 1) / size)
        .values("bucket")
        .annotate(
            first=Min("number"),
            tokens=Max("estimated_tokens"),
            begun=Min("created_at"),
            ended=Max("created_at"),
            failures=Count("pk", filter=Q(status="failed")),
        )
        .order_by("bucket")
    )
    top = max(p["tokens"] for p in points) or 1
    largest = max(points, key=lambda p: p["tokens"])
    places = [(_x(n, len(points)), _y(p["tokens"], top)) for n, p in enumerate(points)]
    drawn = places if len(places) > 1 else [*places, (WIDTH, places[0][1])]
    line = " L".join(f"{x} {y}" for x, y in drawn)
    return Line(
        calls=count,
        first=points[0]["begun"],
        last=points[-1]["ended"],
        path=f"M{line}",
        area=f"M0 {HEIGHT} L{line} L{WIDTH} {HEIGHT}Z",
        ticks="".join(f"M{x} {HEIGHT}v-4" for x, _ in places),
        failed="".join(
            f"M{x} 2v6" for (x, _), p in zip(places, points, strict=True) if p["failures"]
        ),
        largest=top,
        largest_call=largest["first"],
        per_point=size,
    )


def _x(n: int, count: int) -> float:
    return round(WIDTH * n / (count - 1), 1) if count > 1 else 0


def _y(tokens: int, top: int) -> float:
    return round(HEIGHT - 6 - (HEIGHT - 12) * tokens / top, 1)
