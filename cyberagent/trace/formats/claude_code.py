"""Claude Code sessions: the main file, side chains inside it, sub-agent files beside it.

Source: docs/formats.md, "Claude Code".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import Json
from cyberagent.trace.formats.claude_chain import Chain, Entry, Uuids
from cyberagent.trace.formats.claude_tree import bundle, graft, link
from cyberagent.trace.formats.reading import MAX_BYTES, check_size, is_object, json_lines
from cyberagent.trace.formats.values import Imported, Notes, mission_of

NAME = "claude_code"
# Tuples, not sets: what a file says may be of any type, and not all can be looked up in a set.
_ENTRY_TYPES = ("user", "assistant")
_OTHER_TYPES = (
    "system",
    "progress",
    "summary",
    "attachment",
    "file-history-snapshot",
    "queue-operation",
)
_FACTS = (
    ("sessionId", "session_id"),
    ("cwd", "cwd"),
    ("version", "version"),
    ("gitBranch", "git_branch"),
)
_AGENT_FILE = re.compile(r"agent-([A-Za-z0-9_-]{1,100})\.jsonl")


def looks_like(value: Json) -> bool:
    """Whether one line's value can be an entry of a session."""
    if not is_object(value):
        return False
    kind = value.get("type")
    if kind in _ENTRY_TYPES:
        return is_object(value.get("message"))
    return kind in _OTHER_TYPES and ("sessionId" in value or "leafUuid" in value)


def read(path: Path) -> Imported:
    """The session in ``path``, with the sub-agents found beside it.

    Raises ImportRefused where the files are too large or hold no message.
    """
    size = check_size(path)
    session = _Session(Notes())
    session.load(path)
    for agent_id, beside in agent_files(path, session.named_agents()):
        size += check_size(beside, MAX_BYTES - size)
        session.load(beside, agent_id)
    return session.imported(path)


def agent_files(path: Path, named: set[str]) -> list[tuple[str, Path]]:
    """Sub-agent files that belong to session file ``path``: those in its own ``subagents``
    folder, and in the same folder those that the session names. Nothing is opened; links to
    elsewhere are left alone."""
    stem, folder = path.stem, path.parent
    found: dict[str, Path] = {}
    candidates = _files(folder / stem / "subagents")
    for beside in _files(folder):
        match = _AGENT_FILE.fullmatch(beside.name)
        if match and match[1] in named:
            candidates.append(beside)
    for beside in candidates:
        match = _AGENT_FILE.fullmatch(beside.name)
        if match and beside != path and not beside.is_symlink() and beside.is_file():
            found.setdefault(match[1], beside)
    return sorted(found.items())


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("agent-*.jsonl")) if folder.is_dir() else []


@dataclass(slots=True)
class _Session:
    """All chains of a session, by key: "" is the main one, else a sub-agent's id or the uuid of
    a side chain's first entry."""

    notes: Notes
    uuids: Uuids = field(default_factory=Uuids)
    chains: dict[str, Chain] = field(default_factory=dict[str, Chain])
    facts: dict[str, str] = field(default_factory=dict[str, str])
    boundaries: dict[str, dict[str, Json]] = field(default_factory=dict[str, Any])
    beside: set[str] = field(default_factory=set[str])
    _roots: dict[str, str] = field(default_factory=dict[str, str])
    _last_root: str = ""

    # Reading -----------------------------------------------------------------------------

    def load(self, path: Path, agent_id: str = "") -> None:
        """Read one file; with ``agent_id``, all of it is that sub-agent's chain."""
        if agent_id:
            self.beside.add(agent_id)
        for line, entry in json_lines(path, self.notes):
            self.uuids.add(entry)
            key = agent_id or (self._root(entry) if entry.get("isSidechain") is True else "")
            try:
                self._entry(line, entry, key)
            except RecursionError:
                self.notes.skip(line, "nested too deeply")

    def _entry(self, line: int, entry: Entry, key: str) -> None:
        kind = entry.get("type")
        if kind in _ENTRY_TYPES:
            if is_object(entry.get("message")):
                self._facts(entry)
                chain = self._chain(key, entry)
                if entry.get("isCompactSummary") is True:
                    pending = key if key in self.boundaries else ""
                    chain.compaction = self.boundaries.pop(pending, None)
                chain.add(line, entry)
            else:
                self.notes.skip(line, f"{kind} entry whose message is not an object")
        elif kind == "system" and entry.get("subtype") == "compact_boundary":
            self._boundary(entry, key)
        else:
            self._other(entry)

    def _chain(self, key: str, entry: Entry) -> Chain:
        chain = self.chains.get(key)
        if chain is None:
            agent = entry.get("agentId")
            chain = Chain(self.notes, self.uuids, agent if key and isinstance(agent, str) else "")
            self.chains[key] = chain
        return chain

    def _root(self, entry: Entry) -> str:
        """The key of the side chain that ``entry`` belongs to."""
        agent, parent, uuid = entry.get("agentId"), entry.get("parentUuid"), entry.get("uuid")
        if isinstance(agent, str) and agent:
            return agent
        if isinstance(parent, str) and parent in self._roots:
            root = self._roots[parent]
        elif parent is None or not self._last_root:
            root = uuid if isinstance(uuid, str) and uuid else f"side chain {len(self._roots)}"
        else:
            root = self._last_root
        if isinstance(uuid, str):
            self._roots[uuid] = root
        self._last_root = root
        return root

    def _boundary(self, entry: Entry, key: str) -> None:
        details = entry.get("compactMetadata")
        details = details if is_object(details) else {}
        found: dict[str, Json] = {}
        if details.get("trigger") in ("auto", "manual"):
            found["trigger"] = details["trigger"]
        if isinstance(tokens := details.get("preTokens"), int):
            found["pre_tokens"] = tokens
        self.boundaries[key] = found
        self.notes.ignore("system/compact_boundary")

    def _other(self, entry: Entry) -> None:
        kind, detail = entry.get("type"), None
        if kind == "system":
            detail = entry.get("subtype")
        elif kind in ("progress", "attachment"):
            inner = entry.get("data" if kind == "progress" else "attachment")
            detail = inner.get("type") if is_object(inner) else None
        elif kind in ("custom-title", "ai-title"):
            title = entry.get("customTitle") or entry.get("aiTitle")
            if isinstance(title, str):
                self.facts.setdefault("title", mission_of(title))
        self.notes.ignore(f"{kind}/{detail}" if isinstance(detail, str) else kind or "no type")

    def _facts(self, entry: Entry) -> None:
        for theirs, ours in _FACTS:
            value = entry.get(theirs)
            if ours not in self.facts and isinstance(value, str) and value:
                self.facts[ours] = value[:1000]

    def named_agents(self) -> set[str]:
        return {agent for chain in self.chains.values() for agent in chain.agents}

    # Putting together --------------------------------------------------------------------

    def imported(self, path: Path) -> Imported:
        for chain in self.chains.values():
            chain.end()
        for _ in self.boundaries:
            self.notes.warn("a compaction boundary has no summary after it")
        filled = {key: chain for key, chain in self.chains.items() if chain.drafts}
        if not filled:
            raise ImportRefused(_nothing_found(path, self.notes))
        main = filled.pop("" if "" in filled else next(iter(filled)))
        in_file = sum(key not in self.beside for key in filled)
        grafted = {key for key, chain in filled.items() if graft(key, chain, main)}
        sides = [chain for key, chain in filled.items() if key not in grafted]
        return Imported(
            format=NAME,
            trace=bundle(link(main, sides), self.facts, path.stem),
            side_branches=in_file + len(grafted & self.beside),
            skipped=tuple(self.notes.skipped),
            skipped_lines=self.notes.skipped_lines,
            ignored=dict(self.notes.ignored),
            warnings=self.notes.warnings(),
        )


def _nothing_found(path: Path, notes: Notes) -> str:
    kinds = ", ".join(sorted(notes.ignored)[:5])
    return (
        f"{path.name} holds no message of a Claude Code session"
        + (f"; it has entries of the kinds {kinds}" if kinds else "")
        + (f"; {notes.skipped_lines:,} lines could not be used" if notes.skipped_lines else "")
    )
