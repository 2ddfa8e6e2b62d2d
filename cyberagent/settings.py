"""All settings of the Django project, read once from the environment; none has to be set.

Every variable, its default and its unit: docs/settings.md. A value that cannot work stops the
start with an ``ImproperlyConfigured`` that names the variable; no value is ever guessed at.
"""

import math
import os
import secrets
from pathlib import Path
from urllib.parse import quote

import dj_database_url
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


def env_text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def env_flag(name: str, default: bool = False) -> bool:
    value = env_text(name).lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    if value:
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}")
    return default


def env_number(name: str, default: float, kind: type[int] | type[float] = int) -> int | float:
    """A finite number of 0 or more; whole where ``kind`` is int."""
    value = env_text(name)
    if not value:
        return default
    try:
        number = kind(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        what = "whole number" if kind is int else "number"
        raise ImproperlyConfigured(f"{name} must be a {what} of 0 or more, not {value!r}")
    return number


def env_list(name: str, default: str = "") -> list[str]:
    return [part for raw in env_text(name, default).split(",") if (part := raw.strip())]


# --- Where things lie ---------------------------------------------------------------------

DATA_DIR = Path(env_text("CYBERAGENT_DATA_DIR", str(BASE_DIR / ".data"))).expanduser().absolute()
"""The database of the embedded default, the secret key, artifacts and workspaces."""


def make_data_dir() -> None:
    try:
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"CYBERAGENT_DATA_DIR: cannot make {DATA_DIR}: {error}"
        ) from None


def kept_secret_key() -> str:
    """The key in the data folder, made there on the first start; only its owner can read it."""
    make_data_dir()
    path = DATA_DIR / "secret_key"
    if not path.exists():
        draft = DATA_DIR / f".secret_key.{os.getpid()}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(64))
        try:
            # A link appears whole or not at all: of two processes that start at once, one wins.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = path.read_text().strip()
    if len(key) < 50:
        raise ImproperlyConfigured(f"{path} holds no usable key; delete it to have one made")
    return key


# --- Basics -------------------------------------------------------------------------------

DEBUG = env_flag("DEBUG")
SECRET_KEY = env_text("SECRET_KEY") or kept_secret_key()
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env_list("CSRF_TRUSTED_ORIGINS")
ROOT_URLCONF = "cyberagent.urls"
ASGI_APPLICATION = "cyberagent.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env_text("REDIS_URL")
if REDIS_URL and not REDIS_URL.startswith(("redis://", "rediss://")):
    raise ImproperlyConfigured("REDIS_URL must begin with redis:// or rediss://")

RUNS_EMBEDDED = not REDIS_URL
"""True: this web process drives the runs itself. False: Celery workers do."""

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "django_htmx",
    "template_partials",
    "traces",
    "goals",
    "skills_app",
]
if not RUNS_EMBEDDED:
    INSTALLED_APPS.append("cyberagent.celery.ProjectConfig")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- Rows ---------------------------------------------------------------------------------

SQLITE_OPTIONS = {
    # Writers wait their turn from BEGIN on. Deferred transactions that write later are refused
    # at once with "database is locked" when another one has written meanwhile.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
}


def database() -> dict[str, object]:
    """Django's entry for DATABASE_URL; unset, the SQLite file in the data folder."""
    url = env_text("DATABASE_URL")
    if not url:
        make_data_dir()
        url = f"sqlite:///{quote(str(DATA_DIR / 'cyberagent.sqlite3'))}"
    try:
        # A pool holds the connections; CONN_MAX_AGE would leak one for each ASGI thread.
        entry = dict(dj_database_url.parse(url, conn_max_age=0, conn_health_checks=True))
    except ValueError as error:
        raise ImproperlyConfigured(f"DATABASE_URL cannot be read: {error}") from None
    options = dict(entry.get("OPTIONS") or {})
    match entry["ENGINE"]:
        case "django.db.backends.sqlite3" if entry["NAME"] != ":memory:":
            entry["OPTIONS"] = options | SQLITE_OPTIONS
        case "django.db.backends.postgresql":
            size = env_number("DATABASE_POOL_SIZE", 10)
            pool = {"min_size": 1, "max_size": max(1, size), "timeout": 20}
            entry["OPTIONS"] = options | {"pool": pool}
        case _:
            raise ImproperlyConfigured(
                "DATABASE_URL must be sqlite:///path, sqlite:////absolute/path or postgresql://…"
            )
    return entry


DATABASES = {"default": database()}

# --- Live streaming, cache, queue ---------------------------------------------------------

if RUNS_EMBEDDED:
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
else:
    CHANNEL_LAYERS = {
        "default": {
            # The pub/sub layer: it lives through a restart of the server and drops nothing
            # while it is connected. It carries numbers only; the rows are the truth.
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [REDIS_URL], "prefix": "cyberagent"},
        }
    }
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": REDIS_URL,
            "KEY_PREFIX": "cyberagent",
        }
    }

CELERY_BROKER_URL = REDIS_URL or None
CELERY_TASK_DEFAULT_QUEUE = "cyberagent"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
# A task is acknowledged when it has ended, so that a worker's death gives it to another. The
# lease of the trace, not the queue, sees to it that no run is driven twice.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Seconds until an unacknowledged task is handed out again. It counts only where a whole machine
# went away; a run that takes longer is met by its own lease.
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"

# --- People -------------------------------------------------------------------------------

LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- Security -----------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

if env_flag("CYBERAGENT_HTTPS"):
    # For a dashboard behind a proxy that ends TLS and sets X-Forwarded-Proto itself.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    # Asked for by W005 and W021. One host must not decide for all others of its domain.
    SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

UPLOAD_MAX_BYTES = 64 * 1024 * 1024
"""The largest transcript that the import takes, in bytes."""

FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]
FILE_UPLOAD_PERMISSIONS = 0o600
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FILES = 20

# --- Language and time --------------------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# --- Static files -------------------------------------------------------------------------

COLLECTED_STATIC = env_flag("CYBERAGENT_COLLECTED_STATIC")
"""True: files with a hash in their names, compressed, as ``collectstatic`` left them."""

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = BASE_DIR / "staticfiles" if COLLECTED_STATIC else None
WHITENOISE_USE_FINDERS = not COLLECTED_STATIC
WHITENOISE_ALLOW_ALL_ORIGINS = False
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if COLLECTED_STATIC
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

# --- Runs ---------------------------------------------------------------------------------

AGENT_VARIABLES: dict[str, tuple[str, type[int] | type[float]]] = {
    "AGENT_MAX_STEPS": ("max_steps", int),
    "AGENT_TOOL_TIMEOUT_SECS": ("tool_timeout_seconds", float),
    "AGENT_MAX_TOOL_OUTPUT_CHARS": ("max_tool_output_chars", int),
    "AGENT_MAX_MESSAGES": ("max_messages", int),
    "AGENT_TOKEN_SOFT_LIMIT": ("token_soft_limit", int),
    "AGENT_TOKEN_HARD_LIMIT": ("token_hard_limit", int),
    "AGENT_MAX_COST": ("max_cost", float),
    "AGENT_MAX_TREE_STEPS": ("max_tree_steps", int),
    "AGENT_VALIDATOR_TIMEOUT_SECS": ("validator_timeout_seconds", float),
}

AGENT_LIMITS: dict[str, int | float] = {
    field: env_number(name, 0, kind)
    for name, (field, kind) in AGENT_VARIABLES.items()
    if env_text(name)
}
"""Only what is set, under the names of ``cyberagent.core.config.Limits``; over the preset's."""

FALLBACK_MODEL = env_text("FALLBACK_MODEL")

PROVIDER_ENV: dict[str, str] = {
    name: value
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    if (value := env_text(name))
}
"""Keys and addresses of model providers; never shown, stored or logged."""

# --- Logging ------------------------------------------------------------------------------

LOG_LEVEL = env_text("LOG_LEVEL", "INFO").upper()
if LOG_LEVEL not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
    raise ImproperlyConfigured(
        f"LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not {LOG_LEVEL!r}"
    )

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    # Libraries stay at WARNING whatever is asked for: at INFO some write whole URLs, and a
    # provider's URL can hold a key.
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        name: {"level": LOG_LEVEL} for name in ("cyberagent", "traces", "goals", "skills_app")
    },
}
