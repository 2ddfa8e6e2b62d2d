"""``manage.py run``: drive one run in this process and watch it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from cyberagent.compaction.policy import POLICIES
from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.context_policy import read_root_task_anchor
from cyberagent.core.errors import Conflict, InvalidInput
from cyberagent.core.types import Json
from cyberagent.presets import PRESETS, preset_named, resolve
from cyberagent.providers.script import BUILT_IN, load_script
from traces import commands, first_run, lease, live
from traces.management.drawing import Drawing
from traces.management.terminal import TerminalCommand, owner_named, text_of
from traces.models import Trace
from traces.runs import drive, environment, new_owner
from traces.starting import check
from traces.store import in_writer
from traces.stream import follow

LARGEST_PROMPT = 1_000_000
OFFERED = [p.name for p in PRESETS.values() if p.offered]


class Command(TerminalCommand):
    help = "Run a mission here and draw it live. It is stored as any other run is."
    examples = """
  manage.py run                              the demo: a scripted model, real tools, real files
  manage.py run "Why do the tests fail?" --provider openai --model gpt-4o-mini --workspace .
  manage.py run "…" --provider openai --base-url http://localhost:11434/v1 --model qwen3
  manage.py run "…" --provider scripted --script turns.yaml --json | tail -1
  manage.py run --preset recursive           the demo with sub-agents, validated and reviewed
  manage.py run "Fix it" --preset recursive --anchor task.json --provider openai --model gpt-5

An anchor is JSON: {"objective": "…", "completion_criteria": ["…"], "constraints": []}.

Ctrl-C stops the run and stores that; a second one leaves at once. Exit codes: 0 completed,
1 failed, stopped or paused, 2 could not be started, 130 stopped by Ctrl-C.
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("mission", nargs="?", help="what to do (the demo has its own)")
        parser.add_argument("--provider", help="default: scripted")
        parser.add_argument("--model", default="")
        parser.add_argument("--preset", default="cyber", help=", ".join(OFFERED))
        parser.add_argument(
            "--policy", help=f"how windows are kept small: {', '.join(POLICIES)}; else the preset's"
        )
        parser.add_argument(
            "--anchor", type=Path, metavar="FILE", help="root task anchor of a recursive run"
        )
        parser.add_argument(
            "--children", choices=("serial", "parallel"), help="how sub-agents work (serial)"
        )
        parser.add_argument("--validator-provider", help="who validates; default: the run's own")
        parser.add_argument("--validator-model", default="")
        parser.add_argument("--workspace", type=Path, help="folder that file tools are kept in")
        parser.add_argument(
            "--script", help=f"YAML file of the scripted provider, or {', '.join(BUILT_IN)}"
        )
        parser.add_argument("--speed", type=float, help="characters a second; 0: no waiting")
        parser.add_argument("--base-url", help="address of an OpenAI-compatible endpoint")
        parser.add_argument("--context-window", type=int, metavar="TOKENS")
        parser.add_argument("--max-output-tokens", type=int, metavar="TOKENS")
        parser.add_argument("--temperature", type=float)
        parser.add_argument("--max-steps", type=int, help="model calls of a turn; 0: no limit")
        parser.add_argument("--language", choices=("en", "zh"), default="en")
        parser.add_argument("--system-prompt", type=Path, metavar="FILE")
        parser.add_argument("--skill", action="append", default=[], help="inject it; repeatable")
        parser.add_argument("--owner", help="whose run it is (default: the user admin)")
        parser.add_argument("--json", action="store_true", help="one event a line, Done last")

    def work(self, *, mission: str | None, owner: str | None, json: bool, **options: Any) -> int:
        config, demo = config_of(options), _demo(options)
        if mission is None and demo is None:
            raise InvalidInput("say what the run is to do: manage.py run MISSION")
        text = demo.mission if mission is None and demo else str(mission)
        own = demo.root_anchor if demo and config.preset == demo.preset else None
        anchor = _anchor(options["anchor"]) or own
        trace, driver = start_here(owner_named(owner), text, config, options["skill"], anchor)
        drawing = None if json else Drawing(trace.pk, language=config.language)
        return asyncio.run(self._drive(trace.pk, driver, drawing))

    async def _drive(self, trace_id: str, driver: str, drawing: Drawing | None) -> int:
        """Drive and tell until the run is over; the exit code."""
        live.bind(asyncio.get_running_loop())
        run = asyncio.create_task(drive(trace_id, driver))
        asked = _stop_on_signals(trace_id, run)
        try:
            last = await self._watch(trace_id, run, drawing)
        except BrokenPipeError:  # nobody watches any more
            await _ask_to_stop(trace_id)
            await _outcome(run)
            raise
        if drawing is not None:
            drawing.end(last)
        if asked:
            return 128 + asked[0]
        return 0 if last["status"] == "completed" else 1

    async def _watch(self, trace_id: str, run: asyncio.Task[str], drawing: Drawing | None) -> Json:
        """Tell every event until the run is over. The last one told is a Done, whatever came
        after it; it is returned."""
        held: Json | None = None
        async for event in follow(trace_id):
            if event is None and run.done():
                break
            if event is None:
                continue
            if held is not None:
                await self._tell(held, drawing)
            held = event if event["event"] == "Done" else None
            if held is None:
                await self._tell(event, drawing)
        status = await _outcome(run)
        last = held or {"event": "Done", "trace": trace_id, "status": status}
        await self._tell(last, drawing)
        return last

    async def _tell(self, event: Json, drawing: Drawing | None) -> None:
        if drawing is None:
            self.say_json(event)
        else:
            await drawing.hear(event)


def start_here(
    owner: Any,
    mission: str,
    config: RunConfig,
    skills: list[str],
    anchor: RootTaskAnchor | None = None,
) -> tuple[Trace, str]:
    """Store the run with its lease in this process's hand already, so that no other process
    that looks for due runs takes it. Raises InvalidInput and NotFound; then nothing is stored."""
    check(config, skills, anchor)
    config = resolve(config, environment())
    driver = new_owner()
    with transaction.atomic():
        trace = commands.start(owner, mission, config, skills=tuple(skills), anchor=anchor)
        lease.take(trace.pk, driver)
    return trace, driver


def _stop_on_signals(trace_id: str, run: asyncio.Task[str]) -> list[int]:
    """The first SIGINT or SIGTERM asks the run to stop, as an operator does; the second gives
    it up as it stands. Signals that came are in the list."""
    asked: list[int] = []
    pending: set[asyncio.Task[None]] = set()

    def hear(number: int) -> None:
        asked.append(number)
        if len(asked) == 1:
            pending.add(asyncio.ensure_future(_ask_to_stop(trace_id)))
        else:
            run.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear, number)
    return asked


async def _ask_to_stop(trace_id: str) -> None:
    with contextlib.suppress(Conflict):  # it has ended just now
        await in_writer(_stop, trace_id)


def _stop(trace_id: str) -> None:
    trace = Trace.objects.select_related("owner").get(pk=trace_id)
    commands.stop(trace, by=trace.owner)


async def _outcome(run: asyncio.Task[str]) -> str:
    try:
        return await run
    except asyncio.CancelledError:
        return "running"


# Options -----------------------------------------------------------------------------------


def config_of(options: dict[str, Any]) -> RunConfig:
    """The command line's options as a RunConfig. Raises InvalidInput, naming the option."""
    provider = options["provider"] or "scripted"
    config = RunConfig(
        provider=provider,
        model=options["model"],
        preset=options["preset"],
        policy=options["policy"],
        context_window=options["context_window"],
        max_output_tokens=options["max_output_tokens"],
        temperature=options["temperature"],
        language=options["language"],
        system_prompt=_prompt(options["system_prompt"]),
        workspace=str(_workspace(options)),
        children=options["children"] or "serial",
        validator=_validator(options),
        provider_options=_provider_options(provider, options),
    )
    if options["max_steps"] is not None:
        config = config.with_(limits=Limits(max_steps=options["max_steps"]))
    return config.checked()


def _script_name(options: dict[str, Any]) -> str | None:
    """The script to play; the demo of the preset where a scripted run names none."""
    if (options["provider"] or "scripted") != "scripted":
        return None
    own = "recursive" if preset_named(options["preset"]).recursive else "demo"
    return options["script"] or own


def _demo(options: dict[str, Any]) -> first_run.Demo | None:
    return first_run.DEMOS.get(_script_name(options) or "")


def _workspace(options: dict[str, Any]) -> Path | str:
    given: Path | None = options["workspace"]
    if given is None:
        demo = _demo(options)
        return first_run.demo_workspace(demo.script) if demo else ""
    if not given.is_dir():
        raise InvalidInput(f"--workspace: {given} is not a folder")
    return given.resolve()


def _validator(options: dict[str, Any]) -> dict[str, Json]:
    names = ("provider", "model")
    return {n: v for n in names if (v := options[f"validator_{n}"])}


def _provider_options(provider: str, options: dict[str, Any]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if (script := _script_name(options)) is not None:
        found["script"] = _script(script)
    elif options["script"]:
        raise InvalidInput(f"--script goes with the provider scripted, not {provider}")
    if options["base_url"]:
        found["base_url"] = options["base_url"]
    if options["speed"] is not None:
        found["speed"] = options["speed"]
    return found


def _script(name: str) -> str:
    """The script's own text, so that the stored run does not hang on a file. A text of one
    line would be a name: the comment makes it two."""
    if name in BUILT_IN:
        return name
    load_script(Path(name))
    return f"# {Path(name).name}\n{Path(name).read_text(encoding='utf-8-sig')}"


def _anchor(file: Path | None) -> RootTaskAnchor | None:
    return None if file is None else read_root_task_anchor(text_of(file, "--anchor"))


def _prompt(file: Path | None) -> str | None:
    if file is None:
        return None
    text = text_of(file, "--system-prompt")
    if not text.strip() or len(text) > LARGEST_PROMPT:
        raise InvalidInput(f"--system-prompt: {file} is empty or longer than {LARGEST_PROMPT:,}")
    return text
