"""Django's admin over goal rows: a projection, so that nothing here is changed by hand."""

from __future__ import annotations

from django.contrib import admin

from goals.models import Goal
from traces.admin import ReadOnly


@admin.register(Goal)
class GoalAdmin(ReadOnly):
    list_display = ("trace_id", "goal_id", "description", "status", "is_current")
    list_filter = ("status",)
    search_fields = ("trace__id", "description")
    show_full_result_count = False
