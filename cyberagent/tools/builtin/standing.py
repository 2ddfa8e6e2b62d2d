"""Where a recursive run stands in its task, as ``get_current_context`` tells it: the anchor, the
contract's version, the refs that it holds, its sub-agents.

Metadata only: neither the contract nor a ref is expanded. Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyberagent.core.delegation import refs_text
from cyberagent.core.lineage import anchor_text
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_view import Child
from cyberagent.core.window import Item
from cyberagent.core.wording import label

OBJECTIVE_CHARS = 200


MOST_CITED = 30
"""Newest results that are listed with their numbers, to be named as evidence."""


def task_sections(state: Any, language: str) -> list[str]:
    """The sections of a recursive run with this :class:`RunState`; none of any other."""
    protocol: ProtocolState | None = state.protocol
    if protocol is None:
        return []
    found = [f"{label(language, 'context_anchor')}\n{anchor_text(protocol.anchor)}"]
    if protocol.brief is not None:
        found.append(
            label(language, "context_contract").format(
                version=len(protocol.briefs),
                characters=f"{len(protocol.brief.text):,}",
                sha256=protocol.brief.sha256,
            )
        )
    if grants := protocol.catalogue.grants:
        refs = refs_text([g.snapshot for g in grants], language)
        found.append(f"{label(language, 'context_refs')}\n{refs}")
    if protocol.brief is not None and (results := _results(state.history)):
        found.append(label(language, "context_evidence").format(results=results))
    if protocol.children:
        lines = [_child(c, language) for c in protocol.children.values()]
        lines += [
            label(language, "context_approved").format(child=a.child) for a in protocol.approved
        ]
        found.append("\n".join([label(language, "context_children"), *lines]))
    return found


def _results(history: Sequence[Item]) -> str:
    """The newest results of the window with their numbers: nothing else tells a model how its
    messages are called."""
    numbered = [
        f"{i.message.sequence} ({i.message.name})"
        for i in history
        if i.message.role == "tool" and i.kind == "whole" and not i.message.is_placeholder
    ]
    return ", ".join(numbered[-MOST_CITED:])


def _child(child: Child, language: str) -> str:
    if child.review is not None:
        standing = label(language, "child_reviewed").format(decision=child.review.decision)
    elif child.result is not None:
        standing = label(language, "child_due").format(verdict=child.result.verdict)
    else:
        standing = label(language, "child_at_work")
    objective = child.brief.objective
    if len(objective) > OBJECTIVE_CHARS:
        objective = objective[:OBJECTIVE_CHARS] + "…"
    return label(language, "context_child").format(
        child=child.id, objective=objective, standing=standing
    )
