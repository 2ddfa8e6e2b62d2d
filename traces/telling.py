"""What happens in a tree of traces, in plain words of the reader's language.

Source: docs/pages.md, "Sub-agents".
"""

from __future__ import annotations

from django.utils.translation import gettext as _

from cyberagent.core.events import AnchorRevised, ChildEnded, ChildStarted, Event, Reviewed, Verdict
from cyberagent.core.reviewing import BY_PARENT
from cyberagent.trace.rows import Note
from traces.board import Alarm
from traces.models import Trace, Word

TOLD = (ChildStarted, ChildEnded, Verdict, Reviewed, AnchorRevised)
"""Events that :func:`sentence` has words for."""

# Names -------------------------------------------------------------------------------------


def agent_name(kind: str) -> str:
    names = {
        "agent": _("Agent"), "validator": _("Validator"), "explore": _("Explorer"),
        "research": _("Researcher"),
    }  # fmt: skip
    return names.get(kind) or _("Sub-agent")


def status_name(status: str) -> str:
    return str(dict(Trace.Status.choices).get(status, status))


def verdict_name(word: str) -> str:
    return str(dict(Word.choices).get(word, word))


def verdict_style(word: str) -> str:
    """The colour of a verdict's tag."""
    return {"passed": "ok", "failed": "bad"}.get(word, "warn")


def report_name(status: str) -> str:
    names = {
        "completed": _("report: completed"), "partial": _("report: partial"),
        "failed": _("report: failed"),
    }  # fmt: skip
    return names.get(status, status)


def decision_name(decision: str) -> str:
    """What a review decided, said of the sub-agent's result."""
    names = {
        "ACCEPT": _("accepted"), "REVISE_CHILD": _("to be revised"),
        "REPLACE": _("to be replaced"), "ABANDON": _("abandoned"),
    }  # fmt: skip
    return names.get(decision, decision)


def against_verdict(word: str) -> str:
    """Said of a result that was accepted though its verdict is ``word``."""
    return _("against the verdict “%(word)s”") % {"word": verdict_name(word)}


def ref_name(kind: str) -> str:
    names = {"task_brief": _("contract above"), "reviewed_task_result": _("reviewed result")}
    return names.get(kind, kind)


def field_name(field: str) -> str:
    """A field of an anchor or a contract."""
    names = {
        "objective": _("Objective"), "reason": _("Reason"),
        "completion_criteria": _("Completion criteria"),
        "expected_outputs": _("Expected outputs"), "parent_findings": _("Findings from above"),
        "context": _("Context"), "constraints": _("Constraints"), "context_refs": _("Refs"),
    }  # fmt: skip
    return names.get(field, field)


def origin_name(origin: str) -> str:
    """Who set a constraint."""
    names = {"anchor": _("root anchor"), "parent": _("contract above"), "own": _("its own")}
    return names.get(origin, origin)


def alarm_sentence(alarm: Alarm) -> str:
    sentences: dict[Alarm, str] = {
        "orphan": _("It works, but nobody waits for it: its run, or the call that asked for it, "
                    "is over."),
        "undelivered": _("It ended, and its parent goes on without its result."),
        "review_due": _("Its result waits for a review."),
        "against_verdict": _("It was accepted against its verdict."),
        "no_ref": _("Its reviewed result is over a limit: nobody can read it as a ref."),
        "waits": _("It is paused while its parent is live."),
    }  # fmt: skip
    return sentences[alarm]


# Notes on rows -------------------------------------------------------------------------------


def marks_of(notes: tuple[Note, ...]) -> tuple[tuple[str, str], ...]:
    """Tags for what the framework recorded with a message: colour and word of each."""
    return tuple(mark for note in notes for mark in _marks(note))


def _marks(note: Note) -> list[tuple[str, str]]:
    if note.what == "report":
        return [("ok" if note.word == "completed" else "warn", report_name(note.word))]
    if note.what == "verdict":
        return [(verdict_style(note.word), _("verdict: %(word)s") % _lower(note.word))]
    if note.what == "review":
        decided = ("ok" if note.word == "ACCEPT" else "warn", decision_name(note.word))
        return [decided, ("bad", against_verdict(note.against))] if note.against else [decided]
    return []


def _lower(verdict: str) -> dict[str, str]:
    return {"word": verdict_name(verdict).lower()}


# Events --------------------------------------------------------------------------------------


def sentence(event: Event) -> str:
    """One event in a few words, without the mission of the sub-agent that it names."""
    match event:
        case ChildStarted():
            form = _("%(agent)s goes on") if event.resumed else _("%(agent)s begins")
            return form % {"agent": agent_name(event.agent)}
        case ChildEnded(status="paused" | "waiting"):
            return _("%(agent)s pauses") % {"agent": agent_name(event.agent)}
        case ChildEnded():
            told = {"agent": agent_name(event.agent), "status": status_name(event.status).lower()}
            return _("%(agent)s ended (%(status)s)") % told
        case Verdict():
            return _("Verdict on this run: %(word)s") % _lower(event.verdict)
        case Reviewed():
            told = {"who": event.by, "decision": decision_name(event.decision)}
            if event.by in ("", BY_PARENT):
                return _("Reviewed by this run (%(decision)s)") % told
            return _("Reviewed by %(who)s (%(decision)s)") % told
        case AnchorRevised():
            return _("The root anchor was revised by %(who)s") % {"who": event.by}
        case _:
            return event.kind
