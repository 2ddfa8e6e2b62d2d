"""The house itself: settings from the environment, the lock files, the import rule."""

import itertools
import os
import re
import runpy
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parent.parent
Load = Callable[..., dict[str, Any]]


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that sets nothing of ours but the data folder, which is returned."""
    for name in list(os.environ):
        if name not in ("PATH", "HOME", "LANG", "TMPDIR") and not name.startswith("PYTEST_"):
            monkeypatch.delenv(name)
    data = tmp_path / "data"
    monkeypatch.setenv("CYBERAGENT_DATA_DIR", str(data))
    return data


@pytest.fixture
def load(bare_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Reads ``cyberagent/settings.py`` anew, with these variables and no others."""

    def load(**environment: str) -> dict[str, Any]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "cyberagent" / "settings.py"))

    return load


# --- Settings -----------------------------------------------------------------------------


def test_settings_boot_with_nothing_set(load: Load, bare_environment: Path) -> None:
    settings = load()
    database = settings["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.sqlite3"
    assert Path(database["NAME"]) == bare_environment / "cyberagent.sqlite3"
    assert settings["DEBUG"] is False
    assert settings["RUNS_EMBEDDED"] is True
    assert settings["ALLOWED_HOSTS"] == ["localhost", "127.0.0.1", "[::1]"]
    assert settings["AGENT_LIMITS"] == {}
    assert settings["PROVIDER_ENV"] == {}


def test_a_data_folder_may_have_any_name(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c?d#e 数据"
    settings = load(CYBERAGENT_DATA_DIR=str(folder))
    assert settings["DATABASES"]["default"]["NAME"] == str(folder / "cyberagent.sqlite3")


def test_the_secret_key_is_made_once_and_only_its_owner_reads_it(
    load: Load, bare_environment: Path
) -> None:
    first = load()["SECRET_KEY"]
    assert len(first) >= 50
    assert load()["SECRET_KEY"] == first
    assert stat.S_IMODE((bare_environment / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(bare_environment.stat().st_mode) == 0o700
    assert [p.name for p in bare_environment.iterdir()] == ["secret_key"]


def test_another_data_folder_has_another_secret_key(load: Load, tmp_path: Path) -> None:
    one = load(CYBERAGENT_DATA_DIR=str(tmp_path / "one"))["SECRET_KEY"]
    other = load(CYBERAGENT_DATA_DIR=str(tmp_path / "other"))["SECRET_KEY"]
    assert one != other


def test_processes_that_start_at_once_agree_on_the_secret_key(bare_environment: Path) -> None:
    code = "import cyberagent.settings as s; print(s.SECRET_KEY)"
    command = [sys.executable, "-c", code]
    starts = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    keys = {process.communicate()[0].strip() for process in starts}
    assert len(keys) == 1
    assert len(keys.pop()) >= 50


def test_a_secret_key_of_the_environment_leaves_no_file(load: Load, bare_environment: Path) -> None:
    assert load(SECRET_KEY="x" * 60)["SECRET_KEY"] == "x" * 60
    assert not (bare_environment / "secret_key").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEBUG", "maybe"),
        ("CYBERAGENT_HTTPS", "2"),
        ("CYBERAGENT_COLLECTED_STATIC", "y"),
        ("AGENT_MAX_STEPS", "many"),
        ("AGENT_MAX_STEPS", "2.5"),
        ("AGENT_MAX_MESSAGES", "-1"),
        ("AGENT_TOOL_TIMEOUT_SECS", "nan"),
        ("AGENT_TOOL_TIMEOUT_SECS", "inf"),
        ("AGENT_MAX_COST", "cheap"),
        ("DATABASE_URL", "mysql://localhost/x"),
        ("DATABASE_URL", "somewhere"),
        ("DATABASE_URL", "postgres://u:p@host:port/x"),
        ("DATABASE_URL", "sqlite://"),
        ("REDIS_URL", "http://localhost"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_a_bad_value_stops_the_start_and_is_named(load: Load, name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^{name}"):
        load(**{name: value})


def test_a_data_folder_that_cannot_be_made_is_named(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ImproperlyConfigured, match="CYBERAGENT_DATA_DIR"):
        load(CYBERAGENT_DATA_DIR=str(tmp_path / "file" / "below"))


def test_an_error_about_the_database_does_not_tell_its_password(load: Load) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        load(DATABASE_URL="postgres://someone:hunter2@host:port/x")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgres://some%40one:p%2Fw%3A@db.example:5433/my%20rows",
            {
                "USER": "some@one",
                "PASSWORD": "p/w:",
                "HOST": "db.example",
                "PORT": 5433,
                "NAME": "my rows",
            },
        ),
        ("postgresql://db.example/rows", {"HOST": "db.example", "PORT": "", "NAME": "rows"}),
        ("sqlite:///rows.sqlite3", {"NAME": "rows.sqlite3"}),
        ("sqlite:////srv/rows.sqlite3", {"NAME": "/srv/rows.sqlite3"}),
    ],
)
def test_a_database_url_is_read_part_by_part(
    load: Load, url: str, expected: dict[str, object]
) -> None:
    database = load(DATABASE_URL=url)["DATABASES"]["default"]
    assert {name: database[name] for name in expected} == expected


def test_a_database_url_may_name_a_unix_socket(load: Load) -> None:
    settings = load(DATABASE_URL="postgresql://postgres:@/rows?host=/run/pg%20x")
    database = settings["DATABASES"]["default"]
    assert database["HOST"] == ""
    assert database["OPTIONS"]["host"] == "/run/pg x"


def test_postgresql_is_reached_through_a_pool(load: Load) -> None:
    database = load(DATABASE_URL="postgres://h/x", DATABASE_POOL_SIZE="7")["DATABASES"]["default"]
    assert database["OPTIONS"]["pool"]["max_size"] == 7
    assert database["CONN_MAX_AGE"] == 0


def test_a_redis_url_moves_the_runs_to_workers(load: Load) -> None:
    settings = load(REDIS_URL="redis://cache.example:6379/0")
    assert settings["RUNS_EMBEDDED"] is False
    assert settings["CELERY_BROKER_URL"] == "redis://cache.example:6379/0"
    layer = settings["CHANNEL_LAYERS"]["default"]
    assert layer["BACKEND"] == "channels_redis.pubsub.RedisPubSubChannelLayer"
    assert layer["CONFIG"]["hosts"] == ["redis://cache.example:6379/0"]


def test_limits_of_the_environment_are_fields_of_the_engines_limits(load: Load) -> None:
    from cyberagent.core.config import Limits

    settings = load(
        AGENT_MAX_STEPS="8",
        AGENT_TOOL_TIMEOUT_SECS="1.5",
        AGENT_MAX_TOOL_OUTPUT_CHARS="900",
        AGENT_MAX_MESSAGES="50",
        AGENT_TOKEN_SOFT_LIMIT="32000",
        AGENT_TOKEN_HARD_LIMIT="0",
    )
    limits = Limits(**settings["AGENT_LIMITS"])
    assert (limits.max_steps, limits.tool_timeout_seconds) == (8, 1.5)
    assert (limits.max_tool_output_chars, limits.max_messages) == (900, 50)
    assert (limits.token_soft_limit, limits.token_hard_limit) == (32_000, 0)
    assert "max_cost" not in settings["AGENT_LIMITS"]


def test_every_variable_that_is_read_stands_in_the_docs(load: Load) -> None:
    source = (ROOT / "cyberagent" / "settings.py").read_text()
    read = set(re.findall(r'env_\w+\(\s*"([A-Z_]+)"', source)) | set(load()["AGENT_VARIABLES"])
    read |= set(re.findall(r'"((?:OPENAI|ANTHROPIC)_[A-Z_]+)"', source))
    told = set(re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "settings.md").read_text(), re.M))
    assert read == told


# --- The running project ------------------------------------------------------------------


def manage(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "cyberagent.settings"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_deployment_check_is_clean_behind_https(bare_environment: Path) -> None:
    result = manage(
        "check",
        "--deploy",
        "--fail-level=WARNING",
        CYBERAGENT_HTTPS="1",
        ALLOWED_HOSTS="agents.example",
        CSRF_TRUSTED_ORIGINS="https://agents.example",
    )
    assert result.returncode == 0, result.stderr


def test_sqlite_writers_wait_from_the_begin_on(bare_environment: Path) -> None:
    code = (
        "import sqlite3\n"
        "from django.conf import settings\n"
        "from django.db import connection, transaction\n"
        "with transaction.atomic():\n"
        "    other = sqlite3.connect(settings.DATABASES['default']['NAME'], timeout=0)\n"
        "    try:\n"
        "        other.execute('BEGIN IMMEDIATE')\n"
        "    except sqlite3.OperationalError as error:\n"
        "        print('refused:', error)\n"
    )
    result = manage("shell", "--no-imports", "--command", code)
    assert result.stdout.strip() == "refused: database is locked", result.stderr
    database = bare_environment / "cyberagent.sqlite3"
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_every_answer_carries_the_strict_content_policy(client: Any) -> None:
    policy = client.get("/no-such-page/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "nonce" not in policy


def test_celery_knows_the_broker_where_one_is_named(bare_environment: Path) -> None:
    code = "import celery; print(celery.current_app.main, celery.current_app.conf.broker_url)"
    result = manage(
        "shell", "--no-imports", "--command", code, REDIS_URL="redis://broker.example:6379/3"
    )
    assert result.stdout.split() == ["cyberagent", "redis://broker.example:6379/3"], result.stderr


# --- Real servers -------------------------------------------------------------------------


def test_each_test_can_have_an_empty_postgresql_database(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        assert connection.info.server_version >= 140_000
        tables = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone()
    assert tables == (0,)


def test_the_redis_protocol_server_passes_messages_on(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection, connection.pubsub() as listener:
        listener.subscribe("house")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        sent = threading.Thread(target=connection.publish, args=("house", "57"))
        sent.start()
        message = listener.get_message(timeout=5)
        sent.join()
    assert message["data"] == b"57"


# --- Locks, imports, make -----------------------------------------------------------------

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def pins(name: str) -> dict[str, set[str]]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", text, re.M):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_all_with_hashes_and_names_no_host_and_no_path(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    packages = [i for i, line in enumerate(lines) if line and not line.startswith((" ", "#"))]
    assert packages
    for start, end in itertools.pairwise([*packages, len(lines)]):
        assert re.match(r"[a-z0-9._-]+(\[[^]]*\])?==\S+", lines[start]), lines[start]
        assert any("--hash=sha256:" in line for line in lines[start:end]), lines[start]
    assert not [line for line in lines if re.search(r"://|index|find-links|(^|\s)/\w", line)]


def test_what_runs_is_what_was_tested() -> None:
    dev = pins("dev")
    assert len(pins("run")) > 40
    assert {name: dev.get(name) for name in pins("run")} == pins("run")


def test_imports_run_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_the_engine_is_imported_where_there_is_no_django() -> None:
    code = """
import importlib, pkgutil, sys
class NoDjango:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"django", "channels", "celery", "traces", "goals", "skills_app"}:
            raise ImportError(f"the engine imported {name}")
sys.meta_path.insert(0, NoDjango())
import cyberagent
project = {f"cyberagent.{name}" for name in ("settings", "urls", "asgi", "api", "celery")}
modules = pkgutil.walk_packages(cyberagent.__path__, "cyberagent.")
engine = [module.name for module in modules if module.name not in project]
for name in engine:
    importlib.import_module(name)
print(len(engine))
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 40


def test_make_help_tells_each_verb() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = {"run", "test", "lint", "types", "bench", "lock", "messages", "clean", "help"}
    assert verbs <= set(re.findall(r"^(\w+):.* ## ", makefile, re.M))
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert verbs <= set(re.findall(r"^make (\w+) ", result.stdout, re.M))
