"""What a child agent gets of its parent: the anchor, its own contract, refs handed down.

Three normalisers and nothing else decide it; all are pure. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyberagent.core.anchor import (
    ANCHOR,
    ANCHOR_FIELDS,
    MAX_ANCHOR_CHARS,
    AnchorRevision,
    RootTaskAnchor,
)
from cyberagent.core.briefs import BRIEF_FIELDS, TaskBrief, read_brief
from cyberagent.core.errors import InvalidInput, TreeTooLarge
from cyberagent.core.normal import Fields, parse_json, strip, unique, within
from cyberagent.core.refs import Catalogue, Snapshot, once

MAX_TREE_DEPTH = 4
"""Levels of traces below the root, which is at depth 0."""

MAX_TREE_TRACES = 64
"""Traces in one tree, the root among them."""


def normalize_root_task_anchor(value: object) -> RootTaskAnchor:
    """The anchor in normal form: ``objective``, ``completion_criteria`` (at least one) and
    ``constraints`` (may be empty, must be given).

    Texts are stripped, blank items left out, lists stably de-duplicated; at most 4,000
    characters of canonical JSON. Raises InvalidTaskValue, which names the field and the limit.
    """
    fields = Fields(ANCHOR, value, ANCHOR_FIELDS)
    fields.items("constraints", given=True)
    anchor = RootTaskAnchor(
        objective=fields.text("objective", required=True),
        completion_criteria=fields.texts("completion_criteria", required=True),
        constraints=fields.texts("constraints"),
    )
    within(anchor.text, MAX_ANCHOR_CHARS, ANCHOR, anchor.to_json())
    return anchor


def read_root_task_anchor(text: str) -> RootTaskAnchor:
    """The anchor of a JSON file's text. Raises InvalidTaskValue."""
    return normalize_root_task_anchor(parse_json(text, ANCHOR))


def revise_anchor(
    revisions: Sequence[AnchorRevision], value: object, *, by: str, at: str, why: str
) -> tuple[AnchorRevision, ...]:
    """The revisions of a tree's anchor with a new one at the end; the old ones stay unchanged.
    An operator's act: agents have no way to it. Raises InvalidInput where nothing changes or
    no reason is given."""
    anchor = normalize_root_task_anchor(value)
    if not revisions:
        raise InvalidInput("this run has no root anchor that could be revised: create it anew")
    if not strip(why) or not strip(by):
        raise InvalidInput("a revision of the root anchor needs a name and a reason")
    old = revisions[-1].anchor
    if anchor == old:
        raise InvalidInput("the root anchor is already the same")
    new = AnchorRevision(anchor=anchor, by=strip(by), at=at, why=strip(why), supersedes=old.sha256)
    return (*revisions, new)


def normalize_task_brief(
    value: object, anchor: RootTaskAnchor, parent: TaskBrief | None = None
) -> TaskBrief:
    """The brief in normal form, for a child of a trace whose own brief is ``parent`` (None: of
    the root). Its constraints are the anchor's, then the parent's, then its own.

    Required: ``objective``, ``completion_criteria``, ``expected_outputs``. At most 16,000
    characters of canonical JSON. Raises InvalidTaskValue.
    """
    return read_brief(value, inherited_constraints(anchor, parent))


def inherited_constraints(anchor: RootTaskAnchor, parent: TaskBrief | None) -> tuple[str, ...]:
    """What a child's brief cannot do without."""
    return tuple(unique([*anchor.constraints, *(parent.constraints if parent else ())]))


def brief_under(brief: TaskBrief, anchor: RootTaskAnchor) -> TaskBrief:
    """An existing brief once the anchor was revised: it keeps its constraints and gets those
    that it lacks added. Raises InvalidTaskValue where they no longer fit."""
    added = [c for c in anchor.constraints if c not in brief.constraints]
    if not added:
        return brief
    return read_brief(brief.to_json(), [*brief.constraints, *added])


def matches(approved: TaskBrief, called: TaskBrief) -> bool:
    """Whether the brief of an ``agent()`` call is exactly the one that a review approved; both
    must come from :func:`normalize_task_brief` with the same anchor and parent."""
    return approved.text == called.text


def differences(approved: TaskBrief, called: TaskBrief) -> list[str]:
    """Names of the fields in which two briefs differ."""
    a, b = approved.to_json(), called.to_json()
    return [name for name in BRIEF_FIELDS if a[name] != b[name]]


def build_child_context_access(
    catalogue: Catalogue,
    brief: TaskBrief,
    *,
    parent_trace: str,
    parent_brief: TaskBrief | None = None,
) -> tuple[Snapshot, ...]:
    """The child's own copies: its direct parent's contract (a root has none), then the refs of
    ``brief``, each of which must stand as that exact pair in the parent's ``catalogue``.

    Raises RefRefused for any other pair, InvalidTaskValue over 8 refs or 64,000 characters.
    """
    own = [brief_snapshot(parent_trace, parent_brief)] if parent_brief else []
    return once([*own, *(catalogue.get(ref).snapshot for ref in brief.context_refs)])


def brief_snapshot(trace_id: str, brief: TaskBrief) -> Snapshot:
    """The contract of ``trace_id`` as its children may read it."""
    return Snapshot(contract_ref_id(trace_id), "task_brief", brief.text)


def contract_ref_id(trace_id: str) -> str:
    """Under which id the contract of ``trace_id`` is handed down, in whatever version."""
    return f"task_brief:{trace_id}"


def check_tree(
    depth: int,
    traces: int,
    *,
    max_depth: int = MAX_TREE_DEPTH,
    max_traces: int = MAX_TREE_TRACES,
) -> None:
    """Raises TreeTooLarge where a new trace at ``depth`` (the root's children: 1), as number
    ``traces`` of its tree, would be one too many."""
    yourself = "do this part of the work yourself"
    if depth > max_depth:
        raise TreeTooLarge(
            f"a child here would be at depth {depth}; max_depth is {max_depth}: {yourself}"
        )
    if traces > max_traces:
        raise TreeTooLarge(
            f"a child here would be trace number {traces} of this run's tree; at most "
            f"{max_traces} are allowed: {yourself}"
        )
