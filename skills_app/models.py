"""Skill rows: what skill authors edit; the engine is handed the current text of each.

Source: docs/skills.md.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Skill(models.Model):
    name = models.CharField(max_length=64, unique=True)
    description = models.TextField(blank=True, default="")
    text = models.TextField()
    origin = models.CharField(max_length=32, default="built-in")
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class SkillVersion(models.Model):
    """A former or current text of a skill: who wrote it, when."""

    skill = models.ForeignKey(Skill, on_delete=models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    description = models.TextField(blank=True, default="")
    text = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["skill", "version"], name="skill_version"),
        ]
        verbose_name = _("skill version")

    def __str__(self) -> str:
        return f"{self.skill} v{self.version}"
