"""What people do with a verdict: say their own word beside it, and have the run go on with a
correction. Who may is checked by the caller. Source: docs/verdicts.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.errors import Conflict, CyberAgentError, InvalidInput
from cyberagent.core.family import ENDED as OVER
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import Validated
from cyberagent.core.protocol_view import Child
from cyberagent.core.types import Json, sha256
from cyberagent.core.verdicts import WORDS, decided
from cyberagent.core.verdicts import ValidationResult as Result
from cyberagent.core.wording import wording
from traces import child_reviews, commands, paths, records, rows, trees
from traces.acting import ENDED, RESUMABLE, Person, check_goes_on, go_on, locked, name_of
from traces.models import Command, Message, Trace, ValidationResult, VerdictReview
from traces.protocols import protocol_of
from traces.verdict_queue import Judged, criteria_of

MAX_COMMENT = 10_000
"""Characters of a comment."""

MAX_CORRECTION = 8_000
"""Characters of a correction: half of what the brief may have that it becomes a part of."""


class Reason(models.TextChoices):
    """Why a person does not agree with a validator."""

    EVIDENCE_MISREAD = "evidence_misread", _("Evidence was misread")
    EVIDENCE_MISSING = "evidence_missing", _("Evidence is missing")
    CRITERION_MISREAD = "criterion_misread", _("The criterion was misread")
    DONE_ELSEWHERE = "done_elsewhere", _("The work was done elsewhere")
    PACKET_INCOMPLETE = "packet_incomplete", _("The packet was incomplete")
    OTHER = "other", _("Something else")


# A person's word -------------------------------------------------------------------------------


Code = Literal["choice", "unknown_criterion", "too_long", "needed", "does_not_follow"]


class ReviewRefused(InvalidInput):
    """``field``: what of the review is at fault: word, criteria, reason, comment; ``code`` and
    ``values`` say in which way, for pages, which say it in the reader's language."""

    def __init__(self, field: str, why: str, code: Code, **values: str) -> None:
        super().__init__(f"{field} {why}")
        self.field, self.code, self.values = field, code, values


def review(
    row: ValidationResult,
    word: str,
    *,
    by: Person,
    criteria: Mapping[str, str] | None = None,
    reason: str = "",
    comment: str = "",
    expected: int | None = None,
) -> VerdictReview:
    """Store a person's word on a verdict, and on each of its criteria by id; one that is not
    named keeps the validator's. The word must follow from the criteria that decide; another one
    than the validator's needs a reason and a comment. ``expected``: id of the newest review that
    the person has seen, 0 for none; None asks for nothing. Raises ReviewRefused, and Conflict
    where somebody has said a word since; then nothing is stored."""
    comment = comment.strip()
    judged = criteria_of(row)
    words = _words(judged, criteria or {})
    if word not in WORDS:
        raise ReviewRefused("word", f"must be one of {', '.join(WORDS)}", "choice")
    _must_follow(judged, words, word)
    if reason and reason not in Reason.values:
        raise ReviewRefused("reason", f"must be one of {', '.join(Reason.values)}", "choice")
    if len(comment) > MAX_COMMENT:
        n, most = f"{len(comment):,}", f"{MAX_COMMENT:,}"
        why = f"has {n} characters; {most} fit"
        raise ReviewRefused("comment", why, "too_long", n=n, most=most)
    why = f"is needed to overrule a verdict that is {row.verdict}"
    if word != row.verdict and not reason:
        raise ReviewRefused("reason", why, "needed")
    if word != row.verdict and not comment:
        raise ReviewRefused("comment", why, "needed")
    with transaction.atomic():
        ValidationResult.objects.select_for_update().get(pk=row.pk)
        _must_be_newest(row, expected)
        return VerdictReview.objects.create(
            result=row,
            by=by,
            word=word,
            confirms=word == row.verdict,
            criteria=rows.as_json(words, "criteria"),
            reason=reason,
            comment=rows.hold(comment),
            created_at=rows.now(),
        )


class ReviewedSince(Conflict):
    """``newest``: the review that the person has not seen, None where there is none any more."""

    def __init__(self, newest: VerdictReview | None) -> None:
        told = "the review that you saw is gone"
        if newest is not None:
            who, word = newest.by.get_username(), newest.word
            told = f"{who} has said {word} meanwhile, in review {newest.pk}"
        super().__init__(f"expected_review: {told}; look at it first")
        self.newest = newest


def _must_be_newest(row: ValidationResult, expected: int | None) -> None:
    newest = _newest(row)
    if expected is not None and expected != (newest.pk if newest else 0):
        raise ReviewedSince(newest)


def _words(judged: Sequence[Judged], given: Mapping[str, str]) -> dict[str, str]:
    known = {one.id: one.word for one in judged}
    for name, word in given.items():
        if name not in known:
            there = ", ".join(known) or "none"
            why = f"has {name!r:.60}; this verdict has {there}"
            raise ReviewRefused("criteria", why, "unknown_criterion", name=name[:60])
        if word not in WORDS:
            why = f"must be one of {', '.join(WORDS)}"
            raise ReviewRefused(f"criteria.{name}", why, "choice")
    return known | dict(given)


def _must_follow(judged: Sequence[Judged], words: Mapping[str, str], word: str) -> None:
    follows = decided([(one.planned, words[one.id]) for one in judged])  # type: ignore[misc]
    if word != follows:
        told = ", ".join(f"{one.id} {words[one.id]}" for one in judged if one.decides)
        raise ReviewRefused(
            "word",
            f"is {word}, but {follows} follows from the criteria that decide ({told or 'none'})",
            "does_not_follow",
            word=word,
            follows=follows,
        )


# A correction ----------------------------------------------------------------------------------

Way = Literal["say", "review", "say_parent", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a correction would do. ``way``: it is said to the judged run, the child's review
    sends it back to work, it is said to the run above, or nothing can be done, ``why``.
    ``trace``: who hears it; ``text``: exactly what it hears, for a review the next brief;
    ``is_live``: it is at work and hears it at its next safe point, else it is resumed.
    ``expected``: hash of the way, of who hears it and of all that is sent besides the person's
    own text; :func:`correct` takes it, to do what was shown or nothing."""

    way: Way
    trace: Trace | None = None
    text: str = ""
    is_live: bool = False
    why: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    expected: str = ""


def plan_correction(row: ValidationResult, text: str, *, by: Person) -> Correction:
    """What :func:`correct` would do with ``text``; nothing is written. What cannot be done is
    said in the plan. Raises InvalidInput for a text that is too long."""
    text = text.strip()
    if len(text) > MAX_CORRECTION or "\0" in text:
        raise InvalidInput(f"text: a correction has at most {MAX_CORRECTION:,} characters, no NUL")
    try:
        return replace(_planned(row, text, by), expected=_hash(_planned(row, "", by)))
    except CyberAgentError as error:
        return Correction(way="none", why=str(error))


def _hash(plan: Correction) -> str:
    """Of a plan for an empty text: what the person goes on writing is theirs to change."""
    heard = plan.trace.pk if plan.trace else ""
    told: list[Json] = [plan.way, heard, plan.text, dict(plan.arguments)]
    return sha256(json.dumps(told, sort_keys=True).encode())


class PlanChanged(Conflict):
    """What would be sent is not what the person was shown."""

    def __init__(self) -> None:
        super().__init__(
            "expected: what the correction does has changed since it was shown; look at it again"
        )


def correct(
    row: ValidationResult, text: str, *, by: Person, expected: str | None = None
) -> Command:
    """Have the run go on with a correction. ``expected``: that of the plan that the person was
    shown; None asks for nothing. Raises InvalidInput for an empty text, PlanChanged where another
    thing would be done now, Conflict with the reason where nothing can be resumed, and what the
    act itself raises; then nothing is done."""
    if not text.strip():
        raise InvalidInput("text: say what is to be done differently")
    with transaction.atomic():
        locked(row.trace)
        plan = plan_correction(row, text, by=by)
        if plan.trace is None:
            raise Conflict(plan.why)
        if expected is not None and expected != plan.expected:
            raise PlanChanged
        if plan.way == "review":
            return review_child(plan.trace, plan.arguments, by=by, resume=True)
        return commands.say(plan.trace, plan.text, by=by)


def review_child(
    parent: Trace, arguments: Mapping[str, Json], *, by: Person, resume: bool = False
) -> Command:
    """An operator's review of a child of ``parent``; ``resume``: then ``parent`` goes on, and the
    run at its root with it. Raises as :func:`traces.child_reviews.review_child`, and Conflict
    where it cannot go on; then nothing is stored."""
    if resume and (why := stands_still(parent)):
        raise Conflict(why)
    with transaction.atomic():
        command = child_reviews.review_child(parent, arguments, by=by)
        if resume:
            _resume(parent, by)
    return command


def due(trace: Trace) -> Child | None:
    """The trace as the one above it knows it, where its review is due."""
    try:
        state = protocol_of(trace.parent_trace) if trace.parent_trace else None
    except CyberAgentError:
        return None
    found = state.children.get(trace.pk) if state else None
    return found if found and found.review_is_due else None


def _planned(row: ValidationResult, text: str, by: Person) -> Correction:
    trace = row.trace
    if was_left(row):
        raise Conflict("this verdict was left by a rewind: no run goes by it any more")
    _must_count(row)
    parent = trace.parent_trace
    if parent is None:
        _must_go_on(trace)
        said = _quoted("correction", row, text, by, sequence=row.sequence)
        return Correction(way="say", trace=trace, text=said, is_live=trace.is_live)
    state = protocol_of(parent)
    child = state.children.get(trace.pk) if state else None
    if state is None or child is None or child.result is None:
        raise Conflict(f"run {parent.pk}, which asked for it, has not taken the verdict in yet")
    if not _is(row, child.result):
        raise Conflict(f"run {parent.pk}, which asked for it, goes by another verdict on it")
    _must_go_on(parent)
    if child.review_is_due:
        return _sent_back(row, state, child, text, by, parent)
    if parent.parent_trace_id and parent.status in ENDED:
        raise Conflict(f"it was reviewed already, and sub-agent {parent.pk} above it hears nothing")
    said = _quoted("correction_of_child", row, text, by, child=trace.pk, task=rows.held(row.task))
    return Correction(way="say_parent", trace=parent, text=said, is_live=parent.is_live)


def _must_count(row: ValidationResult) -> None:
    """Raises Conflict where another contract, answer or path stands in place of the verdict's."""
    state = protocol_of(row.trace)
    told = [n for n in state.entries if isinstance(n.entry, Validated)] if state else []
    counts = state is not None and state.result is not None and told[-1].sequence == row.sequence
    if not counts:
        raise Conflict("this verdict is not the one that counts for its run any more")


def was_left(row: ValidationResult) -> bool:
    """Whether a rewind left the verdict: its own message, or of a trace between it and the root
    the message that asked for that trace; or the one with which the run above took it in."""
    trace = row.trace
    if not _on_path(trace.pk, row.sequence):
        return True
    asked = [(t.parent_trace_id, t.parent_message) for t in (trace, *trees.above(trace.pk))]
    if any(above and at and not _on_path(above, at) for above, at in asked):
        return True
    told = _told_above(row)
    return bool(told) and not any(_on_path(trace.parent_trace_id or "", at) for at in told)


def _on_path(trace_id: str, sequence: int) -> bool:
    found = Message.objects.filter(trace=trace_id, sequence=sequence)
    place = found.values_list("branch_id", "depth").first()
    return place is not None and any(
        branch == place[0] and first <= place[1] <= last
        for branch, first, last in paths.ranges(trace_id)
    )


def _told_above(row: ValidationResult) -> list[int]:
    """The messages of the run above, on any path, that brought it this verdict."""
    found = Message.objects.filter(
        trace=row.trace.parent_trace_id, branch_type="", metadata__contains=records.MARK
    ).filter(metadata__contains=row.trace_id)
    return [
        sequence
        for sequence, metadata in found.values_list("sequence", "metadata")
        if any(_tells(entry, row) for entry in _entries(json.loads(metadata)))
    ]


def _entries(metadata: Mapping[str, Json]) -> Sequence[Json]:
    told = metadata.get("protocol")
    return told if isinstance(told, list) else ()


def _tells(entry: Json, row: ValidationResult) -> bool:
    """Of what is stored of a run that may be somebody else's: nothing is taken for granted."""
    result = entry.get("result") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(result, dict):
        return False
    told = (entry.get("entry"), entry.get("child"), result.get("verdict"))
    said = (result.get("packet_sha256", ""), result.get("criteria"))
    return told == ("child_ended", row.trace_id, row.verdict) and said == (
        row.packet_sha256,
        json.loads(row.criteria),
    )


def _is(row: ValidationResult, result: Result) -> bool:
    """Whether the run above was told this verdict."""
    same = (result.verdict, result.packet_sha256) == (row.verdict, row.packet_sha256)
    return same and [c.to_json() for c in result.criteria] == json.loads(row.criteria)


def _must_go_on(trace: Trace) -> None:
    if why := stands_still(trace):
        raise Conflict(why)


def stands_still(trace: Trace) -> str:
    """Why a trace cannot go on, by itself or with the run at its root; "" where it can."""
    if trace.is_live:
        return ""
    above = trees.above(trace.pk)
    root = above[-1] if above else trace
    if root.origin != "run":
        return f"run {root.pk} was imported; it cannot be resumed"
    if trace.status == "waiting":
        return f"run {trace.pk} waits for an approval; decide on it first"
    if above and trace.status in OVER:
        return f"sub-agent {trace.pk} is {trace.status}; only the run above can wake it again"
    try:
        if above:
            check_goes_on(trace, above)
    except Conflict as error:
        return str(error)
    return ""


def _resume(trace: Trace, by: Person) -> None:
    """Have a trace at rest go on, a completed root too."""
    now = Trace.objects.get(pk=trace.pk)
    if now.status in RESUMABLE:
        commands.resume(now, by=by)
    elif now.status == "completed":
        go_on(locked(now), f"resumed by {name_of(by)}")


# What is sent --------------------------------------------------------------------------------


def _quoted(name: str, row: ValidationResult, text: str, by: Person, **more: object) -> str:
    """The words that the run hears, in its own language."""
    newest = _newest(row)
    reason = rows.held(row.reason)
    return wording(_language(row.trace), name).format(
        verdict=row.verdict + (f" ({reason})" if reason else ""),
        criteria="\n".join(_lines(row, newest)) or "-",
        person=_person(newest),
        by=name_of(by),
        text=text,
        **more,
    )


def _lines(row: ValidationResult, newest: VerdictReview | None) -> list[str]:
    words: Mapping[str, str] = json.loads(newest.criteria) if newest else {}
    return [
        f"- {one.id} {one.word}"
        + (f" → {words[one.id]}" if one.id in words else "")
        + f": {one.criterion}"
        for one in criteria_of(row)
    ]


def _person(newest: VerdictReview | None) -> str:
    if newest is None:
        return "-"
    why = ", ".join(t for t in (newest.reason.replace("_", " "), rows.held(newest.comment)) if t)
    return f"{newest.word} ({newest.by.get_username()}{': ' + why if why else ''})"


def _newest(row: ValidationResult) -> VerdictReview | None:
    return row.reviews.select_related("by").order_by("-pk").first()


def _language(trace: Trace) -> str:
    return str(json.loads(trace.config).get("language") or "en")


def _sent_back(
    row: ValidationResult,
    state: ProtocolState,
    child: Child,
    text: str,
    by: Person,
    parent: Trace,
) -> Correction:
    """The child's own brief with the correction as one more criterion, so that the next verdict
    looks for it, and what was found among the parent's findings."""
    newest = _newest(row)
    criterion = wording(_language(parent), "correction_criterion").format(by=name_of(by), text=text)
    old = child.brief.to_json()
    asked = {
        **old,
        "completion_criteria": [*old["completion_criteria"], criterion],
        "parent_findings": [*old["parent_findings"], _finding(row, newest)],
    }
    brief = normalize_task_brief(asked, state.anchor, state.brief)
    arguments: dict[str, Json] = {
        "child": child.id,
        "decision": "REVISE_CHILD",
        "reason": (rows.held(newest.comment) if newest else "") or text,
        "next_brief": brief.to_json(),
    }
    return Correction(
        way="review", trace=parent, text=brief.text, is_live=parent.is_live, arguments=arguments
    )


def _finding(row: ValidationResult, newest: VerdictReview | None) -> dict[str, Json]:
    said: dict[str, Json] = {"verdict": row.verdict}
    if newest is not None:
        said["person"] = {
            "by": newest.by.get_username(),
            "verdict": newest.word,
            "criteria": json.loads(newest.criteria),
            "reason": newest.reason,
            "comment": rows.held(newest.comment),
        }
    return {"verdict_on_the_work_before": said}
