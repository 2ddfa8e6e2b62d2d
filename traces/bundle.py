"""A whole trace in, a whole trace out: imports and the lossless export.

Source: docs/rows.md, "Importing".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import (
    ChildEnded,
    ChildStarted,
    Done,
    Event,
    Reviewed,
    Session,
    Verdict,
)
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import CallRecord, Json, Message, TraceState, sha256
from cyberagent.trace.formats.lineages import checked_tree, is_recursive
from cyberagent.trace.formats.values import Imported, TraceBundle
from cyberagent.trace.goals import replay
from cyberagent.trace.tree import pair
from traces import live, models, ports, rows, sql, trees, verdict_rows
from traces.bulk import TreePlan, in_parts, plan_tree
from traces.place import is_answer
from traces.projection import knowledge_in
from traces.projection import refresh as refresh_knowledge
from traces.store import read_blobs
from traces.write import add_anchor, plan_columns, shown_columns

BATCH = 1000
NOT_AT_REST = ("queued", "running", "waiting")
_OWN_ID = re.compile("[0-9a-f]{12}")


def store_import(imported: Imported, owner: Any) -> models.Trace:
    """Store what a file held as a trace of ``owner`` (a user or None), with its children: all
    of it or, where InvalidInput is raised, nothing."""
    return store_bundle(imported.trace, owner)


def store_imports(imported: Sequence[Imported], owner: Any) -> list[models.Trace]:
    """The same for all conversations of a file: all of them, or nothing."""
    return _store_all([one.trace for one in imported], owner)


def store_bundle(bundle: TraceBundle, owner: Any) -> models.Trace:
    """Store a bundle as a new trace. It keeps its id where that is one of ours and free. A run
    that was live is ``interrupted`` here, and settings that reach out of the data (workspace,
    provider options) do not come with it: whoever resumes it sets them anew."""
    return _store_all([bundle], owner)[0]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A bundle with all that can be worked out before anybody has to wait for the database."""

    bundle: TraceBundle
    messages: list[Message]
    plan: TreePlan
    goals: Mapping[str, Json]
    children: list[_Prepared]

    def ids(self) -> list[str]:
        """The names that the file has for its traces."""
        own = [self.name] if self.name else []
        return own + [i for child in self.children for i in child.ids()]

    @property
    def name(self) -> str:
        """The trace's id where it was exported; empty for transcripts of other agents."""
        told = self.bundle.state.id or self.bundle.state.context.get("original_id")
        return told if isinstance(told, str) else ""


def _store_all(bundles: Sequence[TraceBundle], owner: Any) -> list[models.Trace]:
    ready = [_prepared(checked_tree(bundle)) for bundle in bundles]
    with transaction.atomic():
        made = [_store_tree(one, owner) for one in ready]
        return [models.Trace.objects.get(pk=key) for key in made]


def _prepared(bundle: TraceBundle) -> _Prepared:
    path, messages = bundle.checked().main_path(), _counted(bundle)
    return _Prepared(
        bundle,
        messages,
        plan_tree(messages, _orphans(path)),
        replay(path, bundle.state.mission).to_json(),
        [_prepared(child) for child in bundle.children],
    )


def _store_tree(ready: _Prepared, owner: Any) -> str:
    """Store a run with all below it, then what is made from the messages of a whole tree."""
    recursive = is_recursive(ready.bundle)
    names = _names(ready.ids(), as_they_are=recursive)
    key = _store(ready, names, owner, None)
    for number, revision in enumerate(ready.bundle.anchors, 1):
        add_anchor(key, number, revision)
    for trace in trees.whole(key) if recursive else ():
        verdict_rows.rebuild(trace.pk)
    return key


def _names(ids: Sequence[str], *, as_they_are: bool = False) -> dict[str, str]:
    """The id here of each trace of a file, by its id there. Raises InvalidInput on a double, and
    ``as_they_are`` for one that is taken: contracts and refs of a recursive run name its ids,
    and their hashes hold only with these."""
    if len(set(ids)) != len(ids):
        raise InvalidInput("two traces of the file have the same id")
    taken = set(models.Trace.objects.filter(pk__in=ids).values_list("pk", flat=True))
    if as_they_are and taken:
        raise InvalidInput(
            f"the run {min(taken)} is here already: a recursive run keeps its ids, so it comes in "
            "only where they are free"
        )
    return {i: i if _OWN_ID.fullmatch(i) and i not in taken else models.new_trace_id() for i in ids}


def _store(ready: _Prepared, names: Mapping[str, str], owner: Any, parent: str | None) -> str:
    """Store a trace and its children; its id."""
    bundle, plan, goals = ready.bundle, ready.plan, ready.goals
    state, moment = bundle.state, rows.now()
    trace_id = names.get(ready.name) or models.new_trace_id()
    events = _events(bundle, names)
    row = models.Trace(
        pk=trace_id,
        owner=owner,
        created_at=rows.moment_of(state.created_at) if state.created_at else moment,
        updated_at=moment,
        last_event=len(events),
        parent_trace_id=parent,
        parent_message=state.parent_message if parent else None,
        **_state_columns(state),
        **_sums(bundle),
        **plan_columns(goals),
    )
    row.save(force_insert=True)
    keys = _store_branches(trace_id, plan)
    _store_messages(trace_id, ready.messages, plan, keys, moment)
    _store_events(trace_id, events, moment)
    if told := knowledge_in(events):
        refresh_knowledge(trace_id, told, moment)
    _store_calls(trace_id, bundle.calls, moment)
    _store_blobs(bundle.blobs)
    if bundle.state.head_sequence:
        head = plan.placed[bundle.state.head_sequence - 1]
        sql.update(
            models.Trace, trace_id, {"head_branch_id": keys[head.branch], "head_depth": head.depth}
        )
    ports.goals_changed(trace_id, goals)
    transaction.on_commit(lambda: live.publish(trace_id, len(events)), robust=True)
    for child in ready.children:
        _store(child, names, owner, trace_id)
    return trace_id


def _counted(bundle: TraceBundle) -> list[Message]:
    """The messages with their tokens; transcripts bring none."""
    config = bundle.state.config
    counter = counter_for(str(config.get("provider") or ""), str(config.get("model") or ""))
    return [
        m if m.tokens or not m.parts else replace(m, tokens=count_message(counter, m))
        for m in bundle.messages
    ]


def _orphans(path: Sequence[Message]) -> set[int]:
    """Sequences of the main path's tool results that answer no call."""
    return {path[place].sequence for place in pair(path).orphans}


# Columns -----------------------------------------------------------------------------------


def _state_columns(state: TraceState) -> dict[str, Any]:
    was_live = state.status in NOT_AT_REST
    config = _settings(state.config)
    return shown_columns(config) | {
        "mission": rows.hold(state.mission),
        "status": "interrupted" if was_live else state.status,
        "status_why": "it was live when it was exported" if was_live else "",
        "origin": state.origin[:32],
        "config": rows.as_json(config, "config"),
        "context": rows.as_json(dict(state.context), "context"),
        "system_prompt": rows.hold(state.system_prompt),
        "turn": state.turn,
        "head_sequence": state.head_sequence,
        "last_sequence": state.last_sequence,
        "last_call": state.last_call,
    }


_REACHING = ("workspace", "provider_options")
"""Settings that reach out of the data: a file must not choose them."""


def _settings(config: Mapping[str, Json]) -> dict[str, Json]:
    kept = {k: v for k, v in config.items() if k not in _REACHING}
    if isinstance(validator := kept.get("validator"), dict):
        kept["validator"] = {k: v for k, v in validator.items() if k not in _REACHING}
    return kept


def _sums(bundle: TraceBundle) -> dict[str, Any]:
    """What the list of runs shows: from the calls, else from what the messages say of theirs."""
    calls, messages = bundle.calls, bundle.messages
    usages = [c.usage for c in calls] if calls else [m.usage for m in messages]
    costs = [c.cost for c in calls if c.cost is not None]
    return {
        "steps": sum(is_answer(m) for m in messages),
        "prompt_tokens": sum(u.prompt or 0 for u in usages if u),
        "completion_tokens": sum(u.completion or 0 for u in usages if u),
        "cost": sum(costs) if costs else None,
    }


def _events(bundle: TraceBundle, names: Mapping[str, str]) -> list[Event]:
    """A trace's own events, with the new ids of traces that they name; of a transcript that
    brings none, one that says where it came from."""
    if not bundle.events:
        config = bundle.state.config
        return [
            Session(
                how="imported",
                provider=str(config.get("provider") or ""),
                model=str(config.get("model") or ""),
                turn=bundle.state.turn,
                number=1,
            )
        ]
    for number, event in enumerate(bundle.events, 1):
        if event.number != number:
            raise InvalidInput(f"event {number} is numbered {event.number}")
    return [_renamed(e, names) for e in bundle.events]


def _renamed(event: Event, names: Mapping[str, str]) -> Event:
    if isinstance(event, Done):
        return replace(event, trace=names.get(event.trace, event.trace))
    if isinstance(event, ChildStarted | ChildEnded | Reviewed):
        return replace(event, child=names.get(event.child, event.child))
    if isinstance(event, Verdict):
        return replace(event, validator=names.get(event.validator, event.validator))
    return event


# Rows --------------------------------------------------------------------------------------


def _store_branches(trace_id: str, plan: TreePlan) -> list[int]:
    """The keys of the plan's branches, by their place in it: that of their first messages."""
    models.Branch.objects.bulk_create(
        [
            models.Branch(
                trace_id=trace_id,
                kind=b.kind,
                start_depth=b.start_depth,
                fork_sequence=b.fork_sequence,
                first_sequence=b.first_sequence,
            )
            for b in plan.branches
        ],
        batch_size=BATCH,
    )
    made = models.Branch.objects.filter(trace_id=trace_id).order_by("first_sequence")
    keys = list(made.values_list("pk", flat=True))
    models.PathRange.objects.bulk_create(
        [
            models.PathRange(path_id=key, branch_id=keys[branch], start_depth=start, end_depth=end)
            for key, planned in zip(keys, plan.branches, strict=True)
            for branch, start, end in planned.ranges
        ],
        batch_size=BATCH,
    )
    return keys


def _store_messages(
    trace_id: str,
    messages: Sequence[Message],
    plan: TreePlan,
    keys: Sequence[int],
    moment: datetime,
) -> None:
    for part in in_parts(messages, BATCH):
        columns: list[dict[str, Any]] = []
        for message in part:
            place = plan.placed[message.sequence - 1]
            created = rows.moment_of(message.created_at) if message.created_at else moment
            columns.append(
                rows.message_columns(message, created)
                | {"trace_id": trace_id, "branch_id": keys[place.branch], "depth": place.depth}
                | place.totals.columns()
            )
        sql.insert(models.Message, columns)


def _store_events(trace_id: str, events: Sequence[Event], moment: datetime) -> None:
    columns = [
        rows.event_columns(trace_id, e, rows.moment_of(e.at) if e.at else moment) for e in events
    ]
    sql.insert(models.Event, columns)


def _store_calls(trace_id: str, calls: Sequence[CallRecord], moment: datetime) -> None:
    columns: list[dict[str, Any]] = []
    for number, call in enumerate(calls, 1):
        if call.number != number:
            raise InvalidInput(f"call {number} is numbered {call.number}")
        if call.status == "sent":
            call = replace(call, status="cancelled", error="it was open when it was exported")
        created = rows.moment_of(call.created_at) if call.created_at else moment
        columns.append({"trace_id": trace_id} | rows.call_columns(call, created))
    sql.insert(models.ModelCall, columns)


def _store_blobs(blobs: Mapping[str, bytes]) -> None:
    """Blobs are shared by all traces under the hash of their content: a false one is refused."""
    for name, data in blobs.items():
        if sha256(data) != name:
            raise InvalidInput(f"the content {name[:12]}… does not have the hash that names it")
    models.Blob.objects.bulk_create(
        [models.Blob(sha256=name, data=data) for name, data in sorted(blobs.items())],
        batch_size=BATCH,
        ignore_conflicts=True,
    )


# Out ---------------------------------------------------------------------------------------


def bundle_of(trace: models.Trace) -> TraceBundle:
    """Everything that is stored of a trace, its children included, as of one moment."""
    with transaction.atomic():
        return _bundle(trace.pk)


def _bundle(trace_id: str) -> TraceBundle:
    state_row = models.Trace.objects.values(*rows.STATE_COLUMNS).get(pk=trace_id)
    state = rows.state_from(state_row)
    found = models.Message.objects.filter(trace_id=trace_id).order_by("sequence")
    messages = tuple(map(rows.message_from, found.values(*rows.MESSAGE_COLUMNS).iterator()))
    events = models.Event.objects.filter(trace_id=trace_id).order_by("number")
    calls = models.ModelCall.objects.filter(trace_id=trace_id).order_by("number")
    records = tuple(map(rows.call_from, calls.values(*rows.CALL_COLUMNS).iterator()))
    children = models.Trace.objects.filter(parent_trace_id=trace_id).order_by("created_at", "pk")
    bundle = TraceBundle(
        state=state,
        messages=messages,
        events=tuple(map(rows.event_from, events.values(*rows.EVENT_COLUMNS).iterator())),
        calls=records,
        blobs=read_blobs(sorted({h for r in records for h in hashes_in(r.manifest)})),
        children=tuple(_bundle(pk) for pk in children.values_list("pk", flat=True)),
        anchors=trees.read_anchors(trace_id),
    )
    return replace(bundle, goals=replay(bundle.main_path(), state.mission).to_json())


def hashes_in(manifest: Mapping[str, Json]) -> set[str]:
    """The contents that a manifest names itself, full or delta."""
    entries = [e for e in manifest.get("i", ()) if e[0] != "w"]
    own = {e[2] if e[0] == "r" else e[1] for e in entries}
    return own | {manifest[key] for key in "stp" if key in manifest}
