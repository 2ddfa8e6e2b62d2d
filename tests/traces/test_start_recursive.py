"""Starting a recursive run: from the form, by the API, from the terminal; and that it hears of
its anchor, and of no other agent's wish for one."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidConfig, InvalidInput, NotFound
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.presets import PRESETS
from tests.traces.anchored import ANCHOR, FRAME, changed, of_characters
from tests.traces.people import Api, person, stored_trace
from tests.traces.played import now, play, told
from traces import access, anchors, commands, first_run, paths
from traces.models import AnchorRevision, Command, Trace
from traces.starting import start_for

pytestmark = pytest.mark.usefixtures("threads")

VALUE = normalize_root_task_anchor(ANCHOR)
OWN = {"script": {"turns": [{"say": "Done."}]}, "speed": 0}


@pytest.fixture
def ann() -> User:
    return person("ann", "operator")


def recursive(**settings: Any) -> RunConfig:
    options = settings.pop("provider_options", OWN)
    return RunConfig(provider="scripted", preset="recursive", provider_options=options, **settings)


def config_of(trace: Trace) -> dict[str, Any]:
    return json.loads(trace.config)


# Storing it --------------------------------------------------------------------------------------


def test_a_recursive_run_is_stored_with_its_anchor_and_told_it_after_its_mission(ann):
    trace = start_for(ann, "Move the shop.", recursive(), anchor=VALUE)
    mission, opening = paths.page(trace)
    assert (mission.source, mission.text) == ("user", "Move the shop.")
    assert (opening.role, opening.source, opening.turn) == ("user", "framework", 1)
    assert VALUE.text in opening.text and opening.metadata["anchor"] == VALUE.sha256
    assert opening.tokens == count_message(counter_for("scripted", ""), opening) > 20
    assert json.loads(trace.context)["lineage"] == []
    (row,) = AnchorRevision.objects.filter(trace=trace)
    assert (row.number, row.text, row.by, row.why) == (1, VALUE.text, ann, "")


def test_a_recursive_run_needs_an_anchor_and_no_other_takes_one(ann):
    for given in ("start_for", "start"):
        start = {"start_for": start_for, "start": commands.start}[given]
        with pytest.raises(InvalidInput, match="recursive needs a root task anchor"):
            start(ann, "Move.", recursive())
        with pytest.raises(InvalidInput, match="cyber takes no root task anchor"):
            start(ann, "Move.", RunConfig(provider="scripted"), anchor=VALUE)
    assert not Trace.objects.exists() and not AnchorRevision.objects.exists()


def test_the_environment_bounds_the_tree_and_the_run_s_own_limit_stands_above(ann, settings):
    settings.AGENT_LIMITS = {"max_tree_steps": 7, "validator_timeout_seconds": 5.5}
    trace = start_for(ann, "Move.", recursive(), anchor=VALUE)
    assert config_of(trace)["limits"] == {"max_tree_steps": 7, "validator_timeout_seconds": 5.5}
    own = recursive(limits=Limits(max_tree_steps=40))
    trace = start_for(ann, "Move.", own, anchor=VALUE)
    assert config_of(trace)["limits"]["max_tree_steps"] == 40


def test_nobody_starts_what_only_the_framework_starts(ann):
    with pytest.raises(InvalidConfig, match="preset validator"):
        start_for(ann, "Judge.", RunConfig(provider="scripted", preset="validator"))
    assert not Trace.objects.exists()


def test_a_run_hears_of_an_anchor_that_was_revised_before_it_was_driven(ann):
    trace = start_for(ann, "Move the shop.", recursive(), anchor=VALUE)
    made = anchors.revise(
        trace, changed(objective="Move it by May"), by=person("root", "admin"), why="the law"
    )
    play(trace.pk)
    hashes = [m.metadata.get("anchor") for m in paths.page(now(trace))]
    assert [h for h in hashes if h] == [VALUE.sha256, made.sha256]


def test_a_run_that_is_driven_hears_of_it_at_its_next_safe_point(ann):
    trace = start_for(ann, "Move the shop.", recursive(), anchor=VALUE)
    until = timezone.now() + timedelta(hours=1)
    Trace.objects.filter(pk=trace.pk).update(lease_owner="me", lease_until=until)
    made = anchors.revise(
        trace, changed(objective="Move it by May"), by=person("root", "admin"), why="the law"
    )
    assert Command.objects.get().status == "pending"
    play(trace.pk)  # as "me"
    assert Command.objects.get().status == "applied"
    superseding = [m for m in paths.page(now(trace)) if m.metadata.get("anchor") == made.sha256]
    assert len(superseding) == 1 and "Move it by May" in superseding[0].text
    assert len(told(trace, "AnchorRevised")) == 1


def test_no_tool_of_an_agent_reaches_the_anchor(ann, tmp_path):
    """Every tool that a recursive run has, called with all that could mean an anchor."""
    names = (*PRESETS["recursive"].tools, "submit_report")
    wish = {"root_task_anchor": changed(objective="Mine"), "anchor": changed(objective="Mine")}
    calls = [{name: wish | {"trace_id": "it"}} for name in names]
    script = {"turns": [{"calls": calls}, {"say": "I tried."}]}
    trace = start_for(
        ann, "Move.", recursive(provider_options={"script": script, "speed": 0}), anchor=VALUE
    )
    play(trace.pk)
    results = [m for m in paths.page(now(trace)) if m.role == "tool" and m.source == "tool"]
    assert {m.name for m in results} >= set(names)
    (row,) = AnchorRevision.objects.all()
    assert row.text == VALUE.text
    assert not Command.objects.exists()


# Who validates -----------------------------------------------------------------------------------


def test_an_operator_sends_no_validator_to_an_address_of_their_own(ann):
    own = {"provider": "openai", "model": "m", "provider_options": {"base_url": "http://x.test"}}
    with pytest.raises(access.RoleNeeded, match="address"):
        start_for(ann, "Move.", recursive(validator=own), anchor=VALUE)
    hidden = {"provider": "replay", "provider_options": {"trace": stored_trace(person("bo"))}}
    with pytest.raises(NotFound):
        start_for(ann, "Move.", recursive(validator=hidden), anchor=VALUE)
    assert Trace.objects.count() == 1


@pytest.mark.parametrize(
    "validator",
    [
        {"provider": 5}, {"model": ["m"]}, {"provider_options": "x"}, {"provider": "nobody"},
        {"provider": "anthropic", "model": "m"}, {"provider": "openai"}, {"colour": "red"},
    ],
    ids=str,
)  # fmt: skip
def test_a_validator_that_cannot_be_asked_is_refused_first(ann, validator):
    body = {
        "mission": "Move.",
        "anchor": ANCHOR,
        "config": {"provider": "scripted", "preset": "recursive", "validator": validator},
    }
    answer = Api(ann).post("/traces", body)
    assert answer.status_code == 422, answer.content
    assert "validator" in answer.json()["detail"] or "provider" in answer.json()["detail"]
    assert not Trace.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provider_options", None), ("provider_options", ["x"]), ("validator", ["provider"]),
        ("preset", 5), ("preset", []), ("provider", {}), ("model", 7), ("workspace", []),
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_named(ann, name, value):
    config = {"provider": "scripted", "preset": "recursive", name: value}
    body = {"mission": "Move.", "anchor": ANCHOR, "config": config}
    answer = Api(ann).post("/traces", body)
    assert (answer.status_code, name in answer.json()["detail"]) == (422, True)
    assert not Trace.objects.exists()


# The API -----------------------------------------------------------------------------------------


def test_the_api_starts_one_with_its_anchor_children_and_validator(ann):
    config = recursive(
        children="parallel", validator={"provider": "scripted", "model": ""}
    ).to_json()
    answer = Api(ann).post(
        "/traces", {"mission": "Move the shop.", "config": config, "anchor": ANCHOR}
    )
    assert answer.status_code == 201, answer.content
    trace = Trace.objects.get(pk=answer.json()["id"])
    assert config_of(trace)["children"] == "parallel"
    assert config_of(trace)["validator"]["provider"] == "scripted"
    assert AnchorRevision.objects.get(trace=trace).sha256 == VALUE.sha256


@pytest.mark.parametrize(
    ("anchor", "word"),
    [
        (None, "needs a root task anchor"),
        ([], "anchor"),
        ({"objective": "x"}, "constraints"),
        (changed(why="x"), "why is not known"),
        (changed(objective="a\0b"), "NUL"),
        (changed(objective="\ud800"), "surrogate"),
        (of_characters(4_001), "4,001 characters"),
    ],
    ids=range(7),
)
def test_an_anchor_that_cannot_be_starts_nothing(ann, anchor, word):
    body = {
        "mission": "Move.",
        "anchor": anchor,
        "config": {"provider": "scripted", "preset": "recursive"},
    }
    answer = Api(ann).post("/traces", body)
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert not Trace.objects.exists()


# The form ----------------------------------------------------------------------------------------

FIELDS = {
    "mission": "Move the shop.", "provider": "scripted", "preset": "recursive", "language": "en",
    "objective": "Move <the> shop", "completion_criteria": "Paid\r\n\r\n  Off \r\nPaid",
    "constraints": "No card\r\n", "children": "parallel", "max_tree_steps": "40",
}  # fmt: skip


@pytest.fixture
def form(ann: User) -> Client:
    client = Client()
    client.force_login(ann)
    return client


def values(page: bytes) -> dict[str, str]:
    text = page.decode()
    areas = re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>([^<]*)</textarea>', text)
    inputs = re.findall(r'<input type="text"[^>]*name="(\w+)" value="([^"]*)"', text)
    return {name: unescape(value) for name, value in [*areas, *inputs]}


def test_the_form_starts_one_with_one_item_a_line(form):
    answer = form.post("/runs/new/", FIELDS)
    assert answer.status_code == 302
    trace = Trace.objects.get()
    assert json.loads(AnchorRevision.objects.get().text) == {
        "objective": "Move <the> shop",
        "completion_criteria": ["Paid", "Off"],
        "constraints": ["No card"],
    }
    found = config_of(trace)
    assert (found["children"], found["limits"]["max_tree_steps"]) == ("parallel", 40)
    assert "validator" not in found
    # No script was named: the built-in one of the preset, on a copy of its own files.
    assert found["provider_options"]["script"] == "recursive"
    assert (Path(found["workspace"]) / "settings" / "v1.conf").is_file()


@pytest.mark.parametrize(
    ("changes", "at", "words"),
    [
        ({"objective": " "}, "objective-hint", "Say what the whole task is."),
        ({"completion_criteria": "\r\n "}, "completion_criteria-hint", "Name at least one"),
        ({"objective": "é" * 4_000}, "objective-hint", "at most 4,000 fit"),
        ({"constraints": "a\0b"}, "constraints-hint", "NUL"),
        ({"max_tree_steps": "many"}, "max_tree_steps-error", "Write a whole number."),
        ({"validator_provider": "anthropic"}, "validator-hint", "Set ANTHROPIC_API_KEY."),
        ({"validator_provider": "scripted"}, "validator-hint", "Choose a provider."),
        ({"mission": ""}, "mission-error", "Say what the run is to do."),
        ({"max_tree_steps": "-1"}, "max_tree_steps-error", "must be 0 or more"),
    ],
    ids=range(9),
)
def test_an_error_is_said_at_its_field_and_nothing_is_lost(form, changes, at, words):
    given = FIELDS | changes
    answer = form.post("/runs/new/", given)
    assert answer.status_code == 422
    page = answer.content.decode()
    said = re.search(rf'<p class="error"[^>]*id="{at}"[^>]*>([^<]*)</p>', page)
    assert said and words in unescape(said[1])
    shown = values(answer.content)
    for name in ("mission", "objective", "completion_criteria", "constraints", "max_tree_steps"):
        assert shown[name].replace("\r\n", "\n").replace("\u2400", "\0") == given[name].replace(
            "\r\n", "\n"
        ), name
    assert '<option value="parallel" selected>' in page
    assert not Trace.objects.exists()


def test_both_fields_that_are_missing_are_named_at_once(form):
    answer = form.post("/runs/new/", FIELDS | {"objective": "", "completion_criteria": ""})
    assert b"Say what the whole task is." in answer.content
    assert b"Name at least one criterion." in answer.content


def test_exactly_4000_characters_fit(form):
    objective = "é" * (4_000 - len(FRAME))
    fields = {"objective": objective, "completion_criteria": "c", "constraints": ""}
    assert form.post("/runs/new/", FIELDS | fields).status_code == 302
    assert len(AnchorRevision.objects.get().text) == 4_000


def test_another_preset_leaves_the_anchors_fields_alone(form):
    assert form.post("/runs/new/", FIELDS | {"preset": "cyber"}).status_code == 302
    assert not AnchorRevision.objects.exists()
    assert "children" not in config_of(Trace.objects.get())


def test_a_validator_of_its_own_is_chosen(form, settings):
    settings.PROVIDER_ENV = {"OPENAI_API_KEY": "k"}
    chosen = {"validator_provider": "openai", "validator_model": " judge-1 "}
    assert form.post("/runs/new/", FIELDS | chosen).status_code == 302
    assert config_of(Trace.objects.get())["validator"] == {"provider": "openai", "model": "judge-1"}
    answer = form.post("/runs/new/", FIELDS | chosen | {"validator_model": ""})
    assert answer.status_code == 422
    assert b"This provider needs the name of a model." in answer.content


def test_the_form_offers_no_preset_that_nobody_starts(form):
    page = form.get("/runs/new/").content.decode()
    offered = re.findall(r'name="preset" value="(\w+)"', page)
    assert "recursive" in offered and "validator" not in offered


# The demo ----------------------------------------------------------------------------------------


def test_the_runs_page_offers_the_demo_with_sub_agents_beside_the_other(form):
    page = form.get("/runs/").content.decode()
    assert page.count('action="/runs/demo/"') == 2
    assert form.post("/runs/demo/", {"name": "recursive"}).status_code == 302
    assert form.post("/runs/demo/").status_code == 302
    assert set(Trace.objects.values_list("preset", flat=True)) == {"recursive", "cyber"}
    assert form.post("/runs/demo/", {"name": "../x"}).status_code == 404
    assert Trace.objects.count() == 2


def test_the_demo_with_sub_agents_runs_to_its_end(ann):
    trace = first_run.start_demo(ann, "recursive")
    config = config_of(trace) | {"provider_options": {"script": "recursive", "speed": 0}}
    Trace.objects.filter(pk=trace.pk).update(config=json.dumps(config))
    assert play(trace.pk) == "completed"
    assert "passed" in now(trace).status_why
    assert (Path(config["workspace"]) / "MIGRATION.md").is_file()
    assert AnchorRevision.objects.get().sha256 == first_run.DEMOS["recursive"].root_anchor.sha256
