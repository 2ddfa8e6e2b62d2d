"""Where a recursive run stands in its task, as ``get_current_context`` tells it: the anchor, the
contract's version, the refs that it holds, its sub-agents.

Metadata only: neither the contract nor a ref is expanded. Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

from cyberagent.core.delegation import refs_text
from cyberagent.core.lineage import anchor_text
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_view import Child
from cyberagent.core.wording import label

OBJECTIVE_CHARS = 200


def task_sections(protocol: ProtocolState | None, language: str) -> list[str]:
    """The sections of a recursive run; none of any other."""
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
    if protocol.children:
        lines = [_child(c, language) for c in protocol.children.values()]
        lines += [
            label(language, "context_approved").format(child=a.child) for a in protocol.approved
        ]
        found.append("\n".join([label(language, "context_children"), *lines]))
    return found


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
