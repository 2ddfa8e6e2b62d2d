"""Reading paths: pages by depth, by row, by goal, at a cost that does not grow with the depth.

A path ends at a message and is read through its ranges (branch, first depth, last depth), the
root's first. Wherever a function takes ``head``, it is the sequence of the message at which the
path ends; None is the trace's head. Source: docs/rows.md, "Paths".
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import OuterRef, Q, QuerySet, Subquery

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Message as StoredMessage
from cyberagent.trace.rows import row_count
from traces import sql
from traces.models import Branch, Message, Trace
from traces.place import TOTALS, Totals, clipped, ranges_of
from traces.rows import MESSAGE_COLUMNS, hold, message_from

Span = tuple[int, int, int]
"""Branch, first depth, last depth; both inclusive."""

TraceOrId = Trace | str


@dataclass(frozen=True, slots=True)
class End:
    """Where a path ends: ``depth`` of the branch with key ``branch``."""

    branch: int
    depth: int


def end_of(trace: TraceOrId, head: int | None = None) -> End | None:
    """The end of a path; None for the path of no message. Raises NotFound."""
    if head is not None:
        return _end_at(trace if isinstance(trace, str) else trace.pk, head)
    if isinstance(trace, str):
        found = Trace.objects.only("head_branch_id", "head_depth").filter(pk=trace).first()
        if found is None:
            raise NotFound("trace", trace)
        trace = found
    return End(trace.head_branch_id, trace.head_depth) if trace.head_branch_id else None


def _end_at(trace_id: str, head: int) -> End | None:
    if head == 0:
        return None
    found = Message.objects.filter(trace_id=trace_id, sequence=head)
    row = found.values_list("branch_id", "depth").first()
    if row is None:
        raise NotFound("message", head)
    return End(*row)


def ranges(trace: TraceOrId, head: int | None = None) -> list[Span]:
    """The spans that the path runs through, from the root on."""
    end = end_of(trace, head)
    return clipped(ranges_of(end.branch), end.depth) if end else []


# By depth ----------------------------------------------------------------------------------


def page(
    trace: TraceOrId, first: int = 1, last: int | None = None, head: int | None = None
) -> list[StoredMessage]:
    """Messages of the path from depth ``first`` to ``last`` (None: its end), inclusive."""
    return _messages(_cut(ranges(trace, head), first, last))


def main_page(trace: TraceOrId, after: int, limit: int) -> list[StoredMessage]:
    """The first ``limit`` messages of the main path whose sequence is above ``after``."""
    spans = ranges(trace)
    first = _depth_after(trace, spans, after)
    return _messages(_cut(spans, first, first + limit - 1)) if first else []


def _depth_after(trace: TraceOrId, spans: Sequence[Span], after: int) -> int | None:
    """Depth of the first message of a path with a sequence above ``after``: both grow together,
    and a span begins where its branch does."""
    starts = dict(
        Branch.objects.filter(pk__in=[b for b, _, _ in spans]).values_list("pk", "first_sequence")
    )
    later = [span for span in spans if starts[span[0]] > after]
    before = [span for span in spans if starts[span[0]] <= after]
    if before:
        branch, _, end = before[-1]
        trace_id = trace if isinstance(trace, str) else trace.pk
        found = Message.objects.filter(trace_id=trace_id, branch_id=branch, sequence__gt=after)
        depth = found.order_by("sequence").values_list("depth", flat=True).first()
        if depth is not None and depth <= end:
            return depth
    return later[0][1] if later else None


def _cut(spans: Sequence[Span], first: int, last: int | None) -> list[Span]:
    """``spans`` between two depths."""
    top = last if last is not None else (spans[-1][2] if spans else 0)
    return [
        (branch, max(start, first), min(end, top))
        for branch, start, end in spans
        if start <= top and end >= first
    ]


_SPANS = 100
"""Spans of one query: SQLite bounds the depth of an expression."""


def _rows(spans: Sequence[Span]) -> Iterable[dict[str, Any]]:
    """Rows of messages by span, then by depth."""
    for i in range(0, len(spans), _SPANS):
        part = spans[i : i + _SPANS]
        found: QuerySet[Any, dict[str, Any]] = Message.objects.filter(_any_of(part)).values(
            *MESSAGE_COLUMNS
        )
        yield from found.order_by("depth")


def _any_of(spans: Sequence[Span]) -> Q:
    return functools.reduce(
        operator.or_, (Q(branch_id=b, depth__gte=s, depth__lte=e) for b, s, e in spans)
    )


def _messages(spans: Sequence[Span]) -> list[StoredMessage]:
    return [message_from(row) for row in _rows(spans)]


# By row ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowPage:
    """Messages that show rows of a page, in order, and the ``results`` that their calls need.
    ``first_row``: number, from 0, of the first row that the first of them shows; it may lie
    before the page, as the last row may lie behind it."""

    first_row: int
    messages: list[StoredMessage]
    results: list[StoredMessage]


def rows_page(trace: TraceOrId, start_row: int, count: int, head: int | None = None) -> RowPage:
    """Messages of the path that show the rows from number ``start_row`` (from 0) on."""
    return _row_page(end_of(trace, head), "rows", None, start_row, count)


def goal_rows(
    trace: TraceOrId, goal_id: str, start_row: int, count: int, head: int | None = None
) -> RowPage:
    """The same among the messages of one goal ("": those of none); rows are counted within
    the goal."""
    return _row_page(end_of(trace, head), "goal_rows", hold(goal_id), start_row, count)


def _row_page(end: End | None, column: str, goal: str | None, start: int, count: int) -> RowPage:
    """``column`` counts the rows: those of the path, or of a goal where one is given."""
    if end is None or count < 1:
        return RowPage(start, [], [])
    spans = _spans_with_rows(end, column, goal, start, count)
    found = _rows_behind(spans, column, goal, start, count)
    found.sort(key=lambda row: row["upto"])
    on_page = [row for row in found if row["upto"] - row["shown"] < start + count]
    first_row = on_page[0]["upto"] - on_page[0]["shown"] if on_page else start
    messages = [message_from(row) for row in on_page]
    return RowPage(first_row, messages, _results_of(messages, end))


def _spans_with_rows(
    end: End, column: str, goal: str | None, start: int, count: int
) -> list[tuple[int, int]]:
    """Branch and last depth of the ranges that show rows of the page: each range's last message
    tells how many rows the path has up to there, one look-up in an index each."""
    statement = f"""
        SELECT r."branch_id" AS branch, COALESCE(r."end_depth", %s) AS last,
               (SELECT m."{column}" FROM "traces_message" m
                WHERE m."branch_id" = r."branch_id" {_of_goal(goal)}
                  AND m."depth" <= COALESCE(r."end_depth", %s)
                ORDER BY m."depth" DESC LIMIT 1) AS upto
        FROM "traces_pathrange" r WHERE r."path_id" = %s ORDER BY r.start_depth"""
    given = [] if goal is None else [goal]
    found: list[tuple[int, int]] = []
    for row in _fetch(statement, [end.depth, *given, end.depth, end.branch]):
        if row["upto"] is not None and row["upto"] > start:
            found.append((row["branch"], row["last"]))
            if row["upto"] >= start + count:
                break
    return found


def _rows_behind(
    spans: Sequence[tuple[int, int]], column: str, goal: str | None, start: int, count: int
) -> list[dict[str, Any]]:
    """Of each span at most ``count`` messages that show rows behind number ``start``: asked for
    span by span, so that each follows its index and stops."""
    one = f"""
        SELECT * FROM (
            SELECT {sql.columns((*MESSAGE_COLUMNS, "shown"), "m")}, m."{column}" AS upto
            FROM "traces_message" m
            WHERE m."branch_id" = %s {_of_goal(goal)} AND m."depth" <= %s
              AND m."{column}" > %s AND m."shown" > 0
            ORDER BY m."{column}" LIMIT {int(count)}) AS p"""
    given = [] if goal is None else [goal]
    found: list[dict[str, Any]] = []
    for i in range(0, len(spans), _SPANS):
        part = spans[i : i + _SPANS]
        params = [p for branch, last in part for p in (branch, *given, last, start)]
        found += _fetch(" UNION ALL ".join([one] * len(part)), params)
    return found


def _of_goal(goal: str | None) -> str:
    return "" if goal is None else 'AND m."goal_id" = %s'


def shown_rows(message: StoredMessage) -> int:
    """Rows that the merged view shows of a message that answers a call, or needs none."""
    return row_count(message)


def _results_of(messages: Sequence[StoredMessage], end: End) -> list[StoredMessage]:
    """The results of the messages' calls: they follow their message on the path at once, one
    for each call, unless the path ends or was cut between them."""
    asked = [(m.depth, len(m.tool_calls)) for m in messages if m.tool_calls]
    if not asked:
        return []
    spans = clipped(ranges_of(end.branch), end.depth)
    wanted = [cut for depth, calls in asked for cut in _cut(spans, depth + 1, depth + calls)]
    by_depth = {m.depth: m for m in map(message_from, _rows(wanted)) if m.role == "tool"}
    found: list[StoredMessage] = []
    for depth, calls in asked:
        following = (by_depth.get(d) for d in range(depth + 1, depth + calls + 1))
        found += [m for m in itertools.takewhile(bool, following) if m]
    return found


def _fetch(statement: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


# By goal -----------------------------------------------------------------------------------

_GOALS = 100


def goal_totals(
    trace: TraceOrId, goal_ids: Iterable[str], head: int | None = None
) -> dict[str, Totals]:
    """Totals of each goal on the path; goals with no message there are left out. ``goal_ids``
    as the plan names them; the messages of no goal are ``""``. One query for a hundred goals,
    and one for what they found."""
    end = end_of(trace, head)
    names = list(dict.fromkeys(goal_ids))
    if end is None:
        return {}
    found: dict[str, Totals] = {}
    for i in range(0, len(names), _GOALS):
        part = names[i : i + _GOALS]
        last = _last_keys([hold(n) for n in part], end)
        by_key = {
            row["pk"]: Totals(*(row[name] for name in TOTALS))
            for row in Message.objects.filter(pk__in=last.values()).values("pk", *TOTALS)
        }
        found |= {n: by_key[last[hold(n)]] for n in part if hold(n) in last}
    return found


def _last_keys(goals: Sequence[str], end: End) -> dict[str, int]:
    """The key of each goal's newest message on the path; goals as their column holds them."""
    statement = f"""
        SELECT g.column1 AS goal,
               (SELECT m."id" FROM "traces_pathrange" r JOIN "traces_message" m
                  ON m."branch_id" = r."branch_id" AND m."goal_id" = g.column1
                     AND m."depth" <= COALESCE(r."end_depth", %s)
                WHERE r."path_id" = %s
                ORDER BY r."start_depth" DESC, m."depth" DESC LIMIT 1) AS last
        FROM (VALUES {", ".join(["(%s)"] * len(goals))}) AS g"""
    found = _fetch(statement, [end.depth, end.branch, *goals])
    return {row["goal"]: row["last"] for row in found if row["last"] is not None}


def last_in_goal(trace: TraceOrId, goal_id: str, head: int | None = None) -> StoredMessage | None:
    """The newest message of a goal on the path."""
    end = end_of(trace, head)
    if end is None:
        return None
    key = _last_keys([hold(goal_id)], end).get(hold(goal_id))
    row = Message.objects.filter(pk=key).values(*MESSAGE_COLUMNS).first() if key else None
    return message_from(row) if row else None


# Off the path ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ghost:
    """A stretch of messages that left the main path: by a rewind, or since a summary stands
    for it. ``fork_sequence``: the message it hangs on (None: a root); ``span``: where it lies."""

    span: Span
    fork_sequence: int | None
    first_sequence: int

    @property
    def count(self) -> int:
        return self.span[2] - self.span[1] + 1


@dataclass(frozen=True, slots=True)
class SideBranch:
    """``branch_id``: the engine's name; ``kind``: its type; ``fork_sequence``: the message it
    left from."""

    branch_id: str
    kind: str
    span: Span
    fork_sequence: int | None
    first_sequence: int

    @property
    def count(self) -> int:
        return self.span[2] - self.span[1] + 1


def ghosts(trace: TraceOrId, head: int | None = None) -> list[Ghost]:
    """What is stored but on no side branch and not on the path, by first sequence. A piece that
    forked from another ghost is one of its own."""
    on_path = {branch: end for branch, _, end in ranges(trace, head)}
    found: list[Ghost] = []
    tails: list[Span] = []
    for branch, tip in _with_tips(trace).filter(kind="").values_list("pk", "tip"):
        if branch in on_path and tip > on_path[branch]:
            tails.append((branch, on_path[branch] + 1, tip))
    for row in _with_tips(trace).filter(kind="").exclude(pk__in=on_path).values(*_BRANCH, "tip"):
        span = (row["pk"], row["start_depth"], row["tip"])
        found.append(Ghost(span, row["fork_sequence"], row["first_sequence"]))
    found += _tails(tails)
    return sorted(found, key=lambda g: g.first_sequence)


def _tails(spans: Sequence[Span]) -> list[Ghost]:
    """Ends of branches beyond the place where the path leaves them."""
    found: list[Ghost] = []
    for i in range(0, len(spans), _SPANS):
        part = spans[i : i + _SPANS]
        edges = Message.objects.filter(_any_of([(b, s - 1, s) for b, s, _ in part]))
        by_place = {(b, d): n for b, d, n in edges.values_list("branch_id", "depth", "sequence")}
        found += [Ghost(s, by_place[s[0], s[1] - 1], by_place[s[0], s[1]]) for s in part]
    return found


def side_branches(trace: TraceOrId) -> list[SideBranch]:
    """Every side branch of the trace, by first sequence."""
    name = Message.objects.filter(branch=OuterRef("pk"), depth=OuterRef("start_depth"))
    found = _with_tips(trace).exclude(kind="").order_by("first_sequence")
    named = found.annotate(name=Subquery(name.values("side_branch")[:1]))
    return [
        SideBranch(
            row["name"],
            row["kind"],
            (row["pk"], row["start_depth"], row["tip"]),
            row["fork_sequence"],
            row["first_sequence"],
        )
        for row in named.values(*_BRANCH, "kind", "name", "tip")
    ]


_BRANCH = ("pk", "start_depth", "fork_sequence", "first_sequence")


def _with_tips(trace: TraceOrId) -> QuerySet[Branch, Any]:
    """Branches with ``tip``, the depth of their last message: one look-up in an index each."""
    tip = Message.objects.filter(branch=OuterRef("pk")).order_by("-depth").values("depth")[:1]
    key = trace if isinstance(trace, str) else trace.pk
    return Branch.objects.filter(trace_id=key).annotate(tip=Subquery(tip))


def span_messages(
    span: Span, first: int | None = None, last: int | None = None
) -> list[StoredMessage]:
    """Messages of a ghost or side branch, by depth; ``first`` and ``last`` cut it to a page."""
    return _messages(_cut([span], first if first is not None else span[1], last))


def messages_of_branch(trace: TraceOrId, branch_id: str) -> list[StoredMessage]:
    """All messages of the side branch that the engine calls ``branch_id``. Raises NotFound."""
    for side in side_branches(trace):
        if side.branch_id == hold(branch_id):
            return span_messages(side.span)
    raise NotFound("side branch", branch_id)
