"""Goal rows: a projection of each trace's GoalTree at its head, for queries and the admin.

The plan itself is rebuilt by replay of the path; these rows are written anew whenever it
changes and may be thrown away. Source: docs/goals.md.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from traces.models import Trace


class Goal(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending", _("Pending")
        IN_PROGRESS = "in_progress", _("In progress")
        COMPLETED = "completed", _("Completed")
        ABANDONED = "abandoned", _("Abandoned")

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="goals")
    goal_id = models.CharField(max_length=100)
    parent_goal_id = models.CharField(max_length=100, blank=True, default="")
    position = models.PositiveIntegerField(help_text=_("Place in the plan as shown, from 0."))
    level = models.PositiveSmallIntegerField(default=0)
    description = models.TextField()
    reason = models.TextField(blank=True, default="")
    status = models.CharField(max_length=16, choices=Status.choices)
    summary = models.TextField(blank=True, default="")
    priority = models.CharField(max_length=8, blank=True, default="")
    is_current = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["trace", "goal_id"], name="goal_of_trace"),
        ]
        ordering = ["position"]

    def __str__(self) -> str:
        return f"{self.goal_id} {self.description[:60]}"
