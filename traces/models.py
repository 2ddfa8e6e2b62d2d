"""Rows of traces: the tree of messages, events, model calls, operators' commands, access.

Messages, events, calls and blobs are append-only. JSON that comes from models, tools or
transcripts is kept as text in the form of ``cyberagent.core.types.stored_json``, since
PostgreSQL's own JSON cannot hold NUL or lone surrogates. Source: docs/rows.md.
"""

from __future__ import annotations

import secrets

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


def new_trace_id() -> str:
    """12 hexadecimal digits: short enough to type, 48 bits to be unique."""
    return secrets.token_hex(6)


class Trace(models.Model):
    """One agent run, or one imported transcript."""

    class Status(models.TextChoices):
        QUEUED = "queued", _("Queued")
        RUNNING = "running", _("Live")
        PAUSED = "paused", _("Paused")
        WAITING = "waiting", _("Waiting for approval")
        COMPLETED = "completed", _("Completed")
        FAILED = "failed", _("Failed")
        STOPPED = "stopped", _("Stopped")
        INTERRUPTED = "interrupted", _("Interrupted")

    id = models.CharField(primary_key=True, max_length=32, default=new_trace_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT
    )
    shared = models.BooleanField(default=False, help_text=_("Every signed-in user may see it."))
    mission = models.TextField()
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    status_why = models.TextField(blank=True, default="")
    origin = models.CharField(max_length=32, default="run")
    provider = models.CharField(max_length=32, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    preset = models.CharField(max_length=64, blank=True, default="")
    config = models.TextField(default="{}")
    context = models.TextField(default="{}")
    system_prompt = models.TextField(blank=True, default="")
    turn = models.PositiveIntegerField(default=0)

    head_sequence = models.PositiveIntegerField(default=0)
    # Written with nearly each append: an index of it would be rewritten each time for nobody.
    head_branch = models.ForeignKey(
        "Branch",
        null=True,
        blank=True,
        on_delete=models.RESTRICT,
        related_name="+",
        db_index=False,
    )
    head_depth = models.PositiveIntegerField(default=0)
    last_sequence = models.PositiveIntegerField(default=0)
    last_event = models.PositiveIntegerField(default=0)
    last_call = models.PositiveIntegerField(default=0)

    parent_trace = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    parent_message = models.PositiveIntegerField(null=True, blank=True)

    # The lease: one owner drives a trace at a time, and says so again before it runs out.
    lease_owner = models.CharField(max_length=100, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    takeovers = models.PositiveSmallIntegerField(default=0)

    # What the list of runs shows; kept up to date by the write path, never counted on a page.
    steps = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    cost = models.FloatField(null=True, blank=True)
    goals_done = models.PositiveIntegerField(default=0)
    goals_total = models.PositiveIntegerField(default=0)
    current_goal = models.CharField(max_length=300, blank=True, default="")

    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [
            models.Index(fields=["-created_at"], name="trace_newest"),
            models.Index(fields=["status", "lease_until"], name="trace_due"),
        ]

    def __str__(self) -> str:
        return f"{self.id}: {self.mission[:60]}"

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_STATUSES


LIVE_STATUSES = (Trace.Status.QUEUED, Trace.Status.RUNNING)


class Branch(models.Model):
    """A run of messages each of which is the child of the one before: a piece of a path.

    ``start_depth`` is the depth of its first message, the child of ``fork_sequence``. Where it
    ends is not written down: the last message of a branch is one look-up in the index of branch
    and depth, and a column for it would cost a write with each append. ``kind`` is empty for
    pieces of a main path, else the side branch's type.
    """

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="branches")
    kind = models.CharField(max_length=16, blank=True, default="")
    start_depth = models.PositiveIntegerField()
    fork_sequence = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("The message it left from; none for a root.")
    )
    first_sequence = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "branches"

    def __str__(self) -> str:
        return f"{self.trace_id} branch {self.pk}"


class PathRange(models.Model):
    """The path that ends in ``path`` runs through ``branch`` from ``start_depth`` to
    ``end_depth`` (none: to its tip). Copied when a branch is made, so that any page of any path
    is found without walking parents."""

    path = models.ForeignKey(
        Branch, on_delete=models.CASCADE, related_name="ranges", db_index=False
    )
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="+")
    start_depth = models.PositiveIntegerField()
    end_depth = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["path", "start_depth"], name="range_of_path"),
        ]


class Message(models.Model):
    """One node of the message tree; never updated, never deleted.

    The columns ``shown`` … ``goal_ms`` are running totals along the path from the root to this
    message: since ancestors never change they never do, and any count of any path is one look-up.
    ``shown``: rows that the merged view shows of this message; ``rows``: of all up to here;
    ``goal_rows``, ``goal_steps`` (model answers), ``goal_tokens``, ``goal_ms``: the same within
    this message's goal.

    Foreign keys have no index of their own where another index begins with the same column.
    Texts from outside are kept in the form of ``traces.rows.hold``.
    """

    trace = models.ForeignKey(
        Trace, on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    sequence = models.PositiveIntegerField()
    parent_sequence = models.PositiveIntegerField(null=True)
    branch = models.ForeignKey(
        Branch, on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    depth = models.PositiveIntegerField()
    role = models.CharField(max_length=16)
    source = models.CharField(max_length=16)
    parts = models.TextField()
    full_output = models.TextField(null=True)
    tool_call_id = models.TextField(blank=True, default="")
    name = models.TextField(blank=True, default="")
    is_error = models.BooleanField(default=False)
    goal_id = models.CharField(max_length=100, blank=True, default="")
    turn = models.PositiveIntegerField(default=0)
    branch_type = models.CharField(max_length=16, blank=True, default="")
    side_branch = models.CharField(
        max_length=64, blank=True, default="", help_text=_("The engine's name of a side branch.")
    )
    tokens = models.PositiveIntegerField(default=0)
    usage = models.TextField(null=True)
    duration_ms = models.PositiveIntegerField(null=True)
    metadata = models.TextField(default="{}")
    created_at = models.DateTimeField(default=timezone.now)

    shown = models.PositiveIntegerField(default=0)
    rows = models.PositiveIntegerField(default=0)
    goal_rows = models.PositiveIntegerField(default=0)
    goal_steps = models.PositiveIntegerField(default=0)
    goal_tokens = models.PositiveBigIntegerField(default=0)
    goal_ms = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "sequence"], name="message_sequence"),
            models.UniqueConstraint(fields=["branch", "depth"], name="message_depth"),
        ]
        indexes = [
            models.Index(fields=["branch", "goal_id", "depth"], name="message_of_goal"),
            models.Index(fields=["branch", "goal_id", "goal_rows"], name="message_goal_row"),
            models.Index(fields=["branch", "rows"], name="message_row"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} #{self.sequence}"


class Event(models.Model):
    """What happened, numbered 1, 2, 3 … per trace. ``data``: the kind's own fields as JSON."""

    trace = models.ForeignKey(
        Trace, on_delete=models.CASCADE, related_name="events", db_index=False
    )
    number = models.PositiveIntegerField()
    kind = models.CharField(max_length=32)
    message = models.PositiveIntegerField(null=True)
    data = models.TextField(default="{}")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "number"], name="event_number"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} event {self.number}: {self.kind}"


class Blob(models.Model):
    """Content by its own SHA-256: system prompts, schemas, parameters, replaced messages."""

    sha256 = models.CharField(primary_key=True, max_length=64)
    data = models.BinaryField()

    def __str__(self) -> str:
        return self.sha256[:12]


class ModelCall(models.Model):
    """One model call: the window's manifest and hash, then what came of it. Calls are numbered
    1, 2, 3 … per trace. Only the fields of the outcome are ever written twice."""

    class Status(models.TextChoices):
        SENT = "sent", _("Waiting for the answer")
        OK = "ok", _("Answered")
        FAILED = "failed", _("Failed")
        CANCELLED = "cancelled", _("Cancelled")

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="calls", db_index=False)
    number = models.PositiveIntegerField()
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=200, blank=True, default="")
    projection = models.CharField(max_length=32)
    manifest = models.TextField()
    sha256 = models.CharField(max_length=64)
    estimated_tokens = models.PositiveIntegerField()
    exact = models.BooleanField(default=False)
    composition = models.TextField(default="{}")
    branch_id = models.CharField(max_length=64, blank=True, default="")
    after_sequence = models.PositiveIntegerField(default=0)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.SENT)
    message_sequence = models.PositiveIntegerField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    cache_write_tokens = models.PositiveIntegerField(null=True)
    reasoning_tokens = models.PositiveIntegerField(null=True)
    finish_reason = models.CharField(max_length=32, blank=True, default="")
    first_token_ms = models.PositiveIntegerField(null=True)
    duration_ms = models.PositiveIntegerField(null=True)
    tries = models.PositiveSmallIntegerField(default=1)
    error = models.TextField(blank=True, default="")
    cost = models.FloatField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "number"], name="call_number"),
        ]
        indexes = [
            models.Index(fields=["trace", "message_sequence"], name="call_of_message"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} call {self.number}"


class Command(models.Model):
    """An operator's act: stored at once, applied by the run's owner at a safe point."""

    class Status(models.TextChoices):
        PENDING = "pending", _("Waiting for a safe point")
        APPLIED = "applied", _("Applied")
        REFUSED = "refused", _("Refused")

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="commands")
    name = models.CharField(max_length=32)
    arguments = models.TextField(default="{}")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    result = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    applied_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["trace", "id"], condition=Q(status="pending"), name="command_pending"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} on {self.trace_id}"


class Knowledge(models.Model):
    """What a run learnt, as its newest event of that name says; may be made anew from them.

    ``judge``: who accepted or rejected it, a person's name or ``knowledge_eval``; a person's
    word stands over the model's. ``sources``: sequences of the messages it came from.
    """

    class Status(models.TextChoices):
        PENDING = "pending", _("Waiting for a judgement")
        ACCEPTED = "accepted", _("Accepted")
        REJECTED = "rejected", _("Rejected")

    trace = models.ForeignKey(
        Trace, on_delete=models.CASCADE, related_name="knowledge", db_index=False
    )
    name = models.CharField(max_length=64)
    text = models.TextField()
    sources = models.TextField(default="[]")
    goal_id = models.CharField(max_length=100, blank=True, default="")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    judge = models.CharField(max_length=200, blank=True, default="")
    judged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT
    )
    why = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    judged_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "knowledge"
        constraints = [
            models.UniqueConstraint(fields=["trace", "name"], name="knowledge_name"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} {self.name}"


class AnchorRevision(models.Model):
    """One version of a root trace's anchor; never updated, never deleted. ``text`` is its
    canonical JSON, ``supersedes`` the SHA-256 of the version before ("" for the first)."""

    trace = models.ForeignKey(
        Trace, on_delete=models.CASCADE, related_name="anchor_revisions", db_index=False
    )
    number = models.PositiveIntegerField()
    text = models.TextField()
    sha256 = models.CharField(max_length=64)
    supersedes = models.CharField(max_length=64, blank=True, default="")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT
    )
    by_name = models.CharField(
        max_length=200, blank=True, default="", help_text=_("The name at that time.")
    )
    why = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "number"], name="anchor_number"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} anchor {self.number}"


class Word(models.TextChoices):
    """What a verdict says, of the whole and of each criterion."""

    PASSED = "passed", _("Passed")
    FAILED = "failed", _("Failed")
    UNKNOWN = "unknown", _("Unknown")


class ValidationResult(models.Model):
    """A verdict, as the message that carries it says; may be made anew from those messages.

    ``sequence``: that message of the judged trace; ``validator``: the trace in which the packet
    was sent, none where the packet could not be made; ``criteria``: JSON list of ``{id,
    criterion, verdict, reason, evidence}``; ``task``: objective of the brief, or of the anchor
    for a root's answer (``is_root``)."""

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="verdicts")
    sequence = models.PositiveIntegerField()
    validator = models.ForeignKey(
        Trace, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    verdict = models.CharField(max_length=16, choices=Word.choices)
    reason = models.TextField(blank=True, default="")
    criteria = models.TextField(default="[]")
    task = models.TextField(blank=True, default="")
    is_root = models.BooleanField(default=False)
    packet_sha256 = models.CharField(max_length=64, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    cost = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "sequence"], name="verdict_message"),
        ]
        indexes = [models.Index(fields=["-created_at"], name="verdict_newest")]

    def __str__(self) -> str:
        return f"{self.trace_id} #{self.sequence}: {self.verdict}"


class VerdictReview(models.Model):
    """What a person found of a verdict; never updated, the newest counts. ``word``: the person's
    own verdict on the whole; ``criteria``: JSON object of the person's word by criterion id."""

    result = models.ForeignKey(ValidationResult, on_delete=models.CASCADE, related_name="reviews")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    word = models.CharField(max_length=16, choices=Word.choices)
    confirms = models.BooleanField(help_text=_("The same word as the validator's."))
    criteria = models.TextField(default="{}")
    reason = models.CharField(max_length=64, blank=True, default="")
    comment = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.result_id}: {self.word} by {self.by_id}"


class ApiToken(models.Model):
    """A token for programs; only its SHA-256 is kept."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=100)
    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(max_length=12, editable=False)
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class SignInLink(models.Model):
    """A link that signs one user in, once; only its SHA-256 is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"sign-in link of {self.user}"
