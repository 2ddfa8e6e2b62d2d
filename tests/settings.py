"""The project's own settings, over a data folder and a secret key of this test process alone.

Plain ``pytest`` is always on SQLite with everything in one process, whatever the environment
says; ``python -m tests.services pytest …`` is on real servers. Nothing else differs.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.services import ON_SERVICES, keep_given_services

_DATA = Path(tempfile.mkdtemp(prefix="cyberagent-tests-"))
atexit.register(shutil.rmtree, _DATA, ignore_errors=True)

# A developer's own limits, keys and hosts must not change what a test sees.
for _name in list(os.environ):
    if _name.startswith(("AGENT_", "CYBERAGENT_HTTPS", "CYBERAGENT_COLLECTED_STATIC")) or _name in (
        "ALLOWED_HOSTS",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
        "CSRF_TRUSTED_ORIGINS",
        "DEBUG",
        "FALLBACK_MODEL",
        "LOG_LEVEL",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "SECRET_KEY",
    ):
        del os.environ[_name]
os.environ["CYBERAGENT_DATA_DIR"] = str(_DATA)
if not ON_SERVICES:
    keep_given_services()

from cyberagent.settings import *  # noqa: E402, F403
from cyberagent.settings import CACHES, CHANNEL_LAYERS, DATABASES  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if ON_SERVICES:
    # Two test processes share the servers; neither may hear the other's live numbers.
    _worker = f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    CHANNEL_LAYERS["default"]["CONFIG"]["prefix"] = _worker
    CACHES["default"]["KEY_PREFIX"] = _worker
else:
    # A file, as in real use: an in-memory database has neither WAL nor waiting writers.
    DATABASES["default"]["TEST"] = {"NAME": str(_DATA / "test.sqlite3")}
