"""``manage.py verdicts``: the queue of verdicts, one of them, a person's word, agreement."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Mapping
from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.verdicts import WORDS
from traces import agreement, reviews, verdict_queue
from traces.management.terminal import TerminalCommand, owner_named
from traces.models import ValidationResult, VerdictReview
from traces.rows import held, iso
from traces.verdict_shapes import agreements_json, review_json, verdict_detail, verdict_json
from traces.verdicts import Criterion, Evidence, VerdictView, view_of

FILTERS = ("verdict", "review", "model", "run", "since", "until", "search")


class Command(TerminalCommand):
    help = "List what validators found, look at one verdict, say your own word on it."
    examples = """
  manage.py verdicts --review waiting --verdict failed
  manage.py verdicts --run 3f2a9c0d41b7 --json | jq .task
  manage.py verdicts show 12
  manage.py verdicts confirm 12
  manage.py verdicts overrule 12 --word failed --criterion B2=failed \\
      --reason evidence_misread --comment "Message 14 is about another file."
  manage.py verdicts agreement
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="JSON; a list has one line each")
        _add_filters(parser)
        acts = parser.add_subparsers(dest="act", metavar="ACT")
        show = acts.add_parser("show", help="one verdict with claims, evidence and reviews")
        show.add_argument("--packet", action="store_true", help="the packet exactly as sent, alone")
        confirm = acts.add_parser("confirm", help="the validator is right")
        overrule = acts.add_parser("overrule", help="the validator is wrong")
        overrule.add_argument("--word", choices=WORDS, required=True, help="yours, on the whole")
        overrule.add_argument("--reason", choices=reviews.Reason.values, required=True)
        acts.add_parser("agreement", help="how often validators and people agree")
        for one in (show, confirm, overrule):
            one.add_argument("verdict", type=int, metavar="ID", help="the verdict's id")
        for one in (confirm, overrule):
            one.add_argument(
                "--criterion", action="append", default=[], metavar="ID=WORD",
                help="your word on one criterion; the others keep the validator's",
            )  # fmt: skip
            one.add_argument("--comment", default="", required=one is overrule)
            one.add_argument("--user", help="who says so (default: the local user admin)")
        for one in acts.choices.values():
            one.add_argument(
                "--json", action="store_true", default=SUPPRESS, help="one JSON object on one line"
            )

    def work(self, *, act: str | None, **options: Any) -> None:
        works: dict[str | None, Callable[..., None]] = {
            None: self._list,
            "show": self._show,
            "confirm": self._confirm,
            "overrule": self._overrule,
            "agreement": self._agreement,
        }
        works[act](**options)

    def _list(self, *, limit: int, json: bool, **options: Any) -> None:
        wanted = verdict_queue.Filter(**{name: options[f"of_{name}"] for name in FILTERS})
        if not 1 <= limit <= 1000:
            raise InvalidInput("--limit is from 1 to 1,000")
        rows, following = verdict_queue.page(
            ValidationResult.objects.all(), wanted, cursor=options["cursor"], limit=limit
        )
        for row in rows:
            self.say_json(verdict_json(row)) if json else self.say(_line(row))
        if not json and not rows:
            self.say("no verdict fits")
        if not json and following:
            self.say(f"more: --cursor {following}")

    def _show(self, *, verdict: int, json: bool, packet: bool, **_: Any) -> None:
        view = view_of(_existing(verdict))
        if packet:
            if view.sent is None:
                raise NotFound("packet of verdict", verdict)
            self.say(view.sent.text)
        elif json:
            self.say_json(verdict_detail(view))
        else:
            for line in _lines(view):
                self.say(line)

    def _confirm(self, *, verdict: int, **options: Any) -> None:
        row = _existing(verdict)
        self._review(row, row.verdict, **options)

    def _overrule(self, *, verdict: int, word: str, **options: Any) -> None:
        row = _existing(verdict)
        if word == row.verdict:
            raise InvalidInput(f"the validator says {word} too; confirm it instead")
        self._review(row, word, **options)

    def _review(
        self,
        row: ValidationResult,
        word: str,
        *,
        criterion: list[str],
        comment: str,
        user: str | None,
        json: bool,
        reason: str = "",
        **_: Any,
    ) -> None:
        made = reviews.review(
            row,
            word,
            by=owner_named(user),
            criteria=_words(criterion),
            reason=reason,
            comment=comment,
        )
        if json:
            self.say_json(review_json(made))
        else:
            did = "confirmed" if made.confirms else f"overruled as {word}"
            self.say(f"verdict {row.pk} ({row.verdict}) is {did}")

    def _agreement(self, *, json: bool, **_: Any) -> None:
        found = agreement.agreement(ValidationResult.objects.all())
        if json:
            self.say_json(agreements_json(found))
            return
        if not found.all.n:
            self.say("nobody has reviewed a verdict yet")
            return
        for one in (found.all, *found.by_model):
            self.say(f"{one.name or 'all models'}: {_counts(one)}")
        self.say("validator's word (down) and person's (across):")
        self.say("         " + "".join(f"{word:>9}" for word in WORDS))
        for word in WORDS:
            counts = "".join(f"{found.all.table[word][theirs]:>9}" for theirs in WORDS)
            self.say(f"{word:>9}{counts}")
        for one in found.by_criterion:
            self.say(f"{_counts(one)}: {one.name}")


def _add_filters(parser: CommandParser) -> None:
    """Under names of their own: a sub-command's ``--reason`` must not meet them."""
    told: Mapping[str, tuple[str, Any]] = {
        "verdict": ("what the validator said", WORDS),
        "review": ("what people said", verdict_queue.STATES),
        "model": ("the validator's model, exactly", None),
        "run": ("a trace, with everything below it", None),
        "since": ("a day, UTC", None),
        "until": ("a day, UTC; inclusive", None),
        "search": ("words in the task", None),
    }
    for name, (text, choices) in told.items():
        shown = {"choices": choices} if choices else {"metavar": name.upper()}
        parser.add_argument(f"--{name}", dest=f"of_{name}", default="", help=text, **shown)
    parser.add_argument("--limit", type=int, default=50, help="at most 1,000 (default 50)")
    parser.add_argument("--cursor", default="", help="where the page before ended")


def _existing(number: int) -> ValidationResult:
    """Whoever can run commands here may read the database itself: no owner is asked for."""
    row = None
    if 0 < number <= verdict_queue.LARGEST:
        found = ValidationResult.objects.select_related("trace", "validator")
        row = found.filter(pk=number).first()
    if row is None:
        raise NotFound("verdict", number)
    return row


def _words(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, sign, word = one.partition("=")
        if not sign or name in found:
            raise InvalidInput(f"--criterion {one[:60]!r} must be ID=WORD, each id once")
        found[name] = word
    return found


# As people read it -----------------------------------------------------------------------------


def _line(row: ValidationResult) -> str:
    state = verdict_queue.state_of_review(row)
    what = "answer" if row.is_root else "report"
    task = " ".join(held(row.task).split())[:100]
    return f"{row.pk}  {row.verdict}  {state}  {row.trace_id} {what}  {task}"


def _lines(view: VerdictView) -> list[str]:
    row = view.row
    lines = [
        f"verdict {row.pk}: {row.verdict}" + (f" ({held(row.reason)})" if row.reason else ""),
        f"task: {held(row.task)}",
        f"judged: run {row.trace_id}, message {row.sequence}",
        f"by: {held(row.model) or 'no model'}, run {row.validator_id or 'none'}, "
        f"{iso(row.created_at)}, {_cost(row)}",
    ]
    if view.brief:
        lines.append(f"brief: version {view.version}, SHA-256 {view.brief.sha256}")
    for one in view.criteria:
        lines += _criterion(one)
    if view.sent is None:
        lines.append("packet: none was sent")
    else:
        holds = "holds" if view.sent.holds else f"DIFFERENT from {row.packet_sha256}"
        lines.append(f"packet: SHA-256 {view.sent.sha256}, {holds}")
    lines += [_review_line(r) for r in view.reviews] or ["nobody has reviewed it yet"]
    return lines


def _criterion(one: Criterion) -> list[str]:
    judged = one.judged
    beside = "" if judged.decides else " (told beside)"
    lines = [f"{judged.id}{beside}: {judged.criterion}"]
    if one.claim is not None:
        met = "met" if one.claim.met else "not met"
        lines.append(f"  claim: {met}{_evidence(one.claimed_by)}")
    lines.append(f"  validator: {judged.word}: {judged.reason}{_evidence(one.evidence)}")
    if one.person:
        lines.append(f"  person: {one.person}")
    return lines


def _evidence(found: tuple[Evidence, ...]) -> str:
    told = [
        (f"message {e.sequence}" if e.sequence else e.name) + ("" if e.is_there else " (missing)")
        for e in found
    ]
    return f" [{', '.join(told)}]" if told else ""


def _cost(row: ValidationResult) -> str:
    return "cost not known" if row.cost is None else f"${row.cost:.4f}"


def _review_line(review: VerdictReview) -> str:
    did = "confirmed" if review.confirms else f"overruled as {review.word}"
    why = ": ".join(t for t in (review.reason, held(review.comment)) if t)
    return f"{did} by {review.by.get_username()}, {iso(review.created_at)}" + (
        f" ({why})" if why else ""
    )


def _counts(one: agreement.Agreement) -> str:
    share = "–" if one.share is None else f"{100 * one.share:.0f} %"
    kappa = "not defined" if one.kappa is None else f"{one.kappa:.2f}"
    return f"{one.agreed} of {one.n} agree ({share}), kappa {kappa}"
