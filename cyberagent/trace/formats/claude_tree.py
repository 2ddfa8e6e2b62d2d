"""The chains of a session as one trace with child traces. Source: docs/formats.md."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from cyberagent.core.types import Json, TraceState
from cyberagent.trace.formats.claude_chain import Chain, Spawn
from cyberagent.trace.formats.drafts import Draft, finish
from cyberagent.trace.formats.values import TraceBundle, mission_of

_COMPACT_AGENT = "acompact-"
_DEEPEST = 20


def graft(key: str, chain: Chain, main: Chain) -> bool:
    """Put a summarising agent's messages into the main tree, as a side branch that leaves from
    the message its last instruction points at. False where ``key`` is no such agent, or its
    instruction points at no message of the main chain."""
    if not key.startswith(_COMPACT_AGENT):
        return False
    places = {draft: index for index, draft in enumerate(main.drafts)}
    found = (main.draft_at(parent) for parent in reversed(chain.asked))
    start = next((draft for draft in found if draft in places), None)
    if start is None:
        return False
    chain.drafts[0].parent = start
    for draft in chain.drafts:
        draft.branch_type, draft.branch_id, draft.turn = "compression", key, start.turn
        if draft.role == "user":
            draft.source = "framework"
    later = range(places[start] + 1, len(main.drafts))
    before = next((i for i in later if main.drafts[i].source == "summary"), len(main.drafts))
    main.drafts[before:before] = chain.drafts
    return True


@dataclass(slots=True, eq=False)
class Node:
    """A chain with the chains it spawned. ``caller``: the message in the parent's chain that
    made the call; ``linked_by`` says how that is known."""

    chain: Chain
    parent: Node | None = None
    caller: Draft | None = None
    linked_by: str = ""
    children: list[Node] = field(default_factory=list["Node"])

    def lineage(self) -> list[Node]:
        found: list[Node] = []
        node: Node | None = self
        while node is not None and len(found) <= _DEEPEST:
            found.append(node)
            node = node.parent
        return found


def link(main: Chain, sides: Sequence[Chain]) -> Node:
    """Hang each side chain under the call that spawned it: by the agent's id in the call's
    result, else by the prompt's exact text, else by order in the file. What fits nowhere hangs
    on the main trace, under no message."""
    top = Node(main)
    nodes = [Node(chain) for chain in sides]
    owners = [top, *nodes]
    results = {
        agent: (owner, caller)
        for owner in reversed(owners)
        for agent, caller in owner.chain.agents.items()
    }
    prompts: dict[str, list[tuple[Node, Spawn]]] = {}
    for owner in owners:
        for spawn in owner.chain.spawns:
            prompts.setdefault(spawn.prompt, []).append((owner, spawn))
    for node in nodes:
        if node.chain.agent_id in results:
            _attach(node, *results[node.chain.agent_id], "agent id")
    taken = {node.caller for node in nodes}
    for node in nodes:
        if node.parent is None:
            _link_by_prompt(node, prompts.get(node.chain.first_text.strip(), []))
    for node in nodes:
        if node.parent is None:
            _link_by_order(node, top, taken)
    for node in nodes:
        (node.parent or top).children.append(node)
    return top


def _attach(node: Node, owner: Node, caller: Draft, how: str) -> bool:
    """Make ``node`` a child of ``owner``, unless that closes a circle or nests too deeply."""
    lineage = owner.lineage()
    if node in lineage or len(lineage) > _DEEPEST:
        return False
    node.parent, node.caller, node.linked_by = owner, caller, how
    return True


def _link_by_prompt(node: Node, asked: Sequence[tuple[Node, Spawn]]) -> None:
    for owner, spawn in asked:
        if not spawn.taken and _attach(node, owner, spawn.draft, "prompt"):
            spawn.taken = True
            return


def _link_by_order(node: Node, top: Node, taken: Container[Draft | None]) -> None:
    """Under the first call before it that nobody else answers; its own file tells no order."""
    node.parent = top
    if node.chain.agent_id:
        return
    for spawn in top.chain.spawns:
        if spawn.line < node.chain.line and not spawn.taken and spawn.draft not in taken:
            spawn.taken = True
            node.caller, node.linked_by = spawn.draft, "order"
            return


def bundle(node: Node, facts: Mapping[str, Json], fallback: str) -> TraceBundle:
    """The trace of a node, its children below it. ``facts`` go into the context as
    ``imported``; ``fallback`` is the mission where no human text gives one."""
    chain = node.chain
    mission = mission_of(chain.mission or chain.first_text or str(facts.get("title", "")))
    done = finish(chain.drafts, chain.tip, mission or fallback)
    messages = done.messages
    own = dict(facts)
    if chain.agent_id:
        own |= {"agent_id": chain.agent_id}
    if node.linked_by:
        own |= {"linked_by": node.linked_by}
    tip = chain.tip
    return TraceBundle(
        state=TraceState(
            id="",
            mission=mission or fallback,
            status="completed",
            head_sequence=tip.sequence if tip else 0,
            last_sequence=len(messages),
            turn=max((m.turn for m in messages), default=0),
            context={"imported": own},
            origin="claude_code",
            parent_message=node.caller.sequence if node.caller else None,
            created_at=next((m.created_at for m in messages if m.created_at), ""),
        ),
        messages=messages,
        goals=done.goals,
        children=tuple(bundle(child, {}, fallback) for child in node.children),
    )
