"""What all of the admin's lists of traces share. Source: docs/access.md, "Roles"."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from traces import access


class ReadOnly(admin.ModelAdmin):
    """Rows that whoever has the role admin, beside Django's staff mark, may look at."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return access.has_role(request.user, "admin")

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return access.has_role(request.user, "admin")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
