"""The Celery app of scaled-out installations: ``celery -A cyberagent worker``.

Loaded only where REDIS_URL names a broker; all of its settings are the ``CELERY_*`` ones of
``cyberagent/settings.py``. Source: docs/architecture.md#the-way-of-one-turn.
"""

import os

from celery import Celery
from django.apps import AppConfig

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cyberagent.settings")

app = Celery("cyberagent")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


class ProjectConfig(AppConfig):
    """Makes ``app`` Celery's default in each Django process, so that tasks reach the broker."""

    name = "cyberagent"
