"""The pages over the test client: who may see and do what, what a transcript may show, and what
a page costs. How they behave in a browser: ``tests/browser``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cyberagent.core.config import RunConfig
from cyberagent.core.events import Compacted
from cyberagent.core.types import CallRecord, File, Image, Message, Reasoning, Text, text_message
from cyberagent.core.window import Item, Recorder, Window
from tests.traces.made import Story, forked, long, planned
from tests.traces.people import person
from traces import access, commands
from traces.bundle import store_bundle
from traces.models import Command, Trace

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent.parent

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}"


@pytest.fixture
def owner() -> User:
    return person("olga", "operator")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def pages_of(trace: Trace) -> list[str]:
    base = f"/runs/{trace.pk}/"
    return [
        base, f"{base}messages/1/", f"{base}rows/?goal=&start=0&count=50", f"{base}goals/",
        f"{base}where/?sequence=1", f"{base}find/?q=note", f"{base}timeline/", f"{base}commands/",
        f"{base}export/trace/", f"{base}export/openai/", f"{base}goals/1/",
    ]  # fmt: skip


# Who may see -------------------------------------------------------------------------------


def test_other_peoples_traces_are_404_as_those_that_do_not_exist(owner: User) -> None:
    trace = planned().store(owner)
    stranger = signed_in(person("sam", "operator"))
    for address in pages_of(trace):
        theirs = stranger.get(address)
        missing = stranger.get(address.replace(trace.pk, "000000000000"))
        assert (theirs.status_code, missing.status_code) == (404, 404), address


def test_the_owner_sees_every_page(owner: User) -> None:
    trace = planned().store(owner)
    mine = signed_in(owner)
    for address in pages_of(trace):
        assert mine.get(address, follow=True).status_code == 200, address


def test_nobody_sees_anything_without_signing_in(owner: User) -> None:
    trace = planned().store(owner)
    for address in [*pages_of(trace), "/runs/", "/runs/new/", "/skills/", "/account/tokens/"]:
        assert Client().get(address)["Location"].startswith("/sign-in/"), address


def test_a_shared_trace_is_seen_by_a_viewer_who_cannot_act(owner: User) -> None:
    trace = commands.start(owner, "Look", RunConfig(), shared=True)
    viewer = signed_in(person("vera", "viewer"))
    page = viewer.get(f"/runs/{trace.pk}/").content.decode()
    assert "Look" in page
    assert "Stop" not in page
    assert "say-dialog" not in page
    for act in ("do/stop/", "do/pause/", "do/resume/", "say/"):
        assert viewer.post(f"/runs/{trace.pk}/{act}", {"text": "hi"}).status_code == 403, act
    for address in ("/runs/new/", "/runs/import/"):
        assert viewer.get(address).status_code == 403, address
    assert viewer.post("/runs/demo/").status_code == 403
    assert not Command.objects.exists()


def test_a_stop_by_the_owner_is_stored_with_who(owner: User) -> None:
    trace = commands.start(owner, "Look", RunConfig())
    answer = signed_in(owner).post(f"/runs/{trace.pk}/do/stop/", headers={"HX-Request": "true"})
    assert answer.status_code == 200
    command = Command.objects.get()
    assert (command.name, command.by, command.status) == ("stop", owner, "applied")
    again = signed_in(owner).post(f"/runs/{trace.pk}/do/stop/", headers={"HX-Request": "true"})
    assert again.status_code == 409


def test_acts_need_the_token_against_forged_requests(owner: User) -> None:
    trace = commands.start(owner, "Look", RunConfig())
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    assert client.post(f"/runs/{trace.pk}/do/stop/").status_code == 403


def test_sessions_on_this_machine_are_for_its_admin_alone(owner: User) -> None:
    assert signed_in(owner).get("/runs/import/found/").status_code == 403
    assert b"found on this machine" not in signed_in(owner).get("/runs/import/").content


def test_a_path_that_is_no_found_session_is_not_imported() -> None:
    admin = signed_in(access.local_admin())
    answer = admin.post("/runs/import/found/one/", {"path": "/etc/passwd"})
    assert answer.status_code == 404


# Signing in --------------------------------------------------------------------------------


def test_a_sign_in_link_works_once_and_looking_does_not_count(owner: User) -> None:
    link = f"/sign-in/{access.create_sign_in_link(owner)}/"
    assert Client().get(link).status_code == 200
    assert Client().post(link)["Location"] == "/runs/"
    assert Client().post(link).status_code == 410


# What a transcript may show ------------------------------------------------------------------


def evil_story() -> Story:
    story = Story(EVIL)
    story.plan(add=[EVIL, "two"], focus="1", reason=EVIL)
    story.tool(EVIL, {EVIL: EVIL}, EVIL, text=EVIL)
    story.tool("read_file", {"path": EVIL}, f'{{"{EVIL[:8]}": 1}}', is_error=True)
    story.think(EVIL)
    story.add(
        Message(
            role="user",
            source="operator",
            parts=(
                Text(f"[x](javascript:alert(3)) ![y](http://elsewhere/a.png)\n\n{EVIL}"),
                Image(url="http://elsewhere/b.png"),
                Image(media_type="image/svg+xml", data="PHN2Zz4="),
                Image(media_type="image/png", data="iVBORw0KGgo="),
                File(name=EVIL, text=EVIL),
                Reasoning(EVIL),
            ),
        )
    )
    story.plan(done="1", summary=EVIL, focus="2")
    return story


def harmless(html: str) -> bool:
    """Whether nothing of EVIL became markup: no such element, handler, address or image."""
    tags = re.findall(r"<[a-zA-Z][^>]*>", html)
    return not [
        tag
        for tag in tags
        if re.match(r"<script(?! (type=\"module\" )?src=\"/static/)", tag)
        or re.search(r"\son\w+=", re.sub(r"\"[^\"]*\"|'[^']*'", "", tag))
        or "javascript:" in tag
        or re.match(r"<img(?! src=\"data:image/png)", tag)
    ]


def test_scripts_in_every_field_are_inert(owner: User) -> None:
    story = evil_story()
    trace = story.store(owner)
    mine = signed_in(owner)
    base = f"/runs/{trace.pk}/"
    addresses = [
        "/runs/", base, f"{base}goals/", f"{base}rows/?goal=1&start=0&count=50",
        f"{base}find/?q=alert", f"{base}commands/",
    ]  # fmt: skip
    addresses += [f"{base}messages/{n}/" for n in range(1, len(story.messages) + 1)]
    addresses += [f"{base}messages/{n}/?view=raw" for n in range(1, len(story.messages) + 1)]
    for address in addresses:
        answer = mine.get(address)
        assert answer.status_code == 200, address
        assert harmless(answer.content.decode()), address


def test_the_check_of_harm_sees_harm() -> None:
    assert not harmless("<p><script>alert(1)</script>")
    assert not harmless("<img src=x onerror=alert(2)>")
    assert not harmless('<a href="javascript:alert(3)">')
    assert not harmless("<b onclick=x>")


def test_pictures_come_only_with_the_message(owner: User) -> None:
    trace = evil_story().store(owner)
    page = signed_in(owner).get(f"/runs/{trace.pk}/messages/9/").content.decode()
    assert re.findall(r"<img[^>]*src=\"([^\"]*)\"", page) == ["data:image/png;base64,iVBORw0KGgo="]
    assert "http://elsewhere/b.png" in page


def test_text_that_utf8_cannot_hold_is_shown(owner: User) -> None:
    story = Story("half \ud83d and nul \0")
    story.say("a lone \udc00 surrogate")
    trace = story.store(owner)
    mine = signed_in(owner)
    assert "half \ufffd and nul \u2400" in mine.get(f"/runs/{trace.pk}/").content.decode()
    shown = mine.get(f"/runs/{trace.pk}/messages/2/").content.decode()
    assert "a lone \ufffd surrogate" in shown
    raw = mine.get(f"/runs/{trace.pk}/messages/2/?view=raw").content.decode()
    assert r"\udc00" in raw


def test_deep_json_is_shown_as_text(owner: User) -> None:
    story = Story()
    story.tool("read_file", {"path": "x"}, "[" * 5000 + "]" * 5000)
    trace = story.store(owner)
    assert signed_in(owner).get(f"/runs/{trace.pk}/messages/3/").status_code == 200


# The tree ----------------------------------------------------------------------------------


def rows_at(client: Client, trace: Trace, goal: str, start: int, count: int) -> list[str]:
    answer = client.get(f"/runs/{trace.pk}/rows/", {"goal": goal, "start": start, "count": count})
    texts = re.findall(r'<span class="t">(.*?)</span><span class="m">', answer.content.decode())
    return [re.sub(r"<[^>]+>", "", t).strip() for t in texts]


def test_pages_of_rows_meet_without_a_gap(owner: User) -> None:
    trace = planned(60).store(owner)
    mine = signed_in(owner)
    whole = rows_at(mine, trace, "1", 0, 100)
    # 60 files, then the call that ended the goal.
    assert [w.split()[0] for w in whole[:60]] == [
        f"read_file(&quot;notes/{n}.md&quot;)" for n in range(60)
    ]
    assert len(whole) == 61
    pieces = [r for start in range(0, 61, 7) for r in rows_at(mine, trace, "1", start, 7)]
    assert pieces == whole


def test_rows_of_no_goal_stand_before_and_after_the_goals(owner: User) -> None:
    story = planned()
    story.plan(done="3", summary="written")
    story.say("All is done.")
    trace = story.store(owner)
    page = signed_in(owner).get(f"/runs/{trace.pk}/").content.decode()
    lists = re.findall(r'data-list="(\w+)" data-first="(\d+)" data-total="(\d+)"', page)
    # Before: the mission and the plan. After: the answer. 1: six files and its end; 2: the shell
    # and its end; 3: a thought, a text, and its end.
    assert lists == [
        ("before", "0", "2"), ("1", "0", "7"), ("2", "0", "2"), ("3", "0", "3"),
        ("after", "2", "1"),
    ]  # fmt: skip


def test_where_a_tool_result_stands_is_where_its_call_does(owner: User) -> None:
    trace = planned().store(owner)
    mine = signed_in(owner)
    # 1 user, 2–3 plan, then call and result of each file: the result of the third is 9.
    place = mine.get(f"/runs/{trace.pk}/where/?sequence=9").json()
    assert place["sequence"] == "8"
    assert (place["goal"], place["row"], place["open"]) == ("1", 2, ["1"])


def test_a_message_off_the_path_has_an_address_but_no_row(owner: User) -> None:
    trace = store_bundle(forked(), owner)
    mine = signed_in(owner)
    place = mine.get(f"/runs/{trace.pk}/where/?sequence=11").json()
    assert place["row"] is None
    page = mine.get(f"/runs/{trace.pk}/messages/11/").content.decode()
    assert "A wrong turn." in page
    assert "not on the main path" in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("summary=10", ["Try the cache first.", "terminal(&quot;flush&quot;) → flushed"]),
        ("ghost=11", ["A wrong turn.", "terminal(&quot;rm -r cache&quot;) → removed"]),
        ("branch=8", ["What did you learn?", "Caches are innocent."]),
    ],
)
def test_what_hangs_on_the_path_opens_to_its_messages(
    owner: User, query: str, expected: list[str]
) -> None:
    trace = store_bundle(forked(), owner)
    page = signed_in(owner).get(f"/runs/{trace.pk}/open/?{query}").content.decode()
    texts = re.findall(r'<span class="t">(.*?)</span><span class="m">', page)
    plain = [re.sub(r"<[^>]+>", "", t).strip() for t in texts]
    assert plain[:2] == expected


def test_long_stretches_open_by_pages(owner: User) -> None:
    story = Story()
    for n in range(120):
        story.say(f"thought {n}")
    story.add(text_message("user", "Again.", source="operator"), parent=1)
    trace = story.store(owner)
    mine = signed_in(owner)
    seen: list[str] = []
    address = f"/runs/{trace.pk}/open/?ghost=2"
    while address:
        page = mine.get(address).content.decode()
        seen += re.findall(r"thought (\d+)", page)
        following = re.search(r'data-more="([^"]+)">Later', page)
        address = following[1].replace("&amp;", "&") if following else ""
    assert seen == [str(n) for n in range(120)]


def test_what_the_newest_window_lacks_is_dimmed_and_says_by_what(owner: User) -> None:
    story = Story()
    for n in range(4):
        story.tool("read_file", {"path": f"{n}.md"}, f"text {n}")
    story.say("later")
    # The window held the mission, the first file whole, the second shortened; the others went.
    whole = [Item(m) for m in story.messages[:3]]
    short = replace(story.messages[4], parts=(Text("cut"),))
    items = (*whole, Item(story.messages[3]), Item(short, "replaced", "micro", "old output"))
    recorded = Recorder().record(1, Window(system="", items=items))
    call = CallRecord(
        number=1, provider="scripted", model="", projection="openai/1",
        manifest=recorded.manifest, sha256="0" * 64, estimated_tokens=50, exact=False,
        after_sequence=9,
    )  # fmt: skip
    went = Compacted(
        number=1, level=1, strategy="goal", trigger="threshold", tokens_before=90, tokens_after=50,
        first=6, last=9,
    )  # fmt: skip
    bundle = replace(story.bundle(), calls=(call,), blobs=recorded.blobs, events=(went,))
    trace = store_bundle(replace(bundle, state=replace(bundle.state, last_call=1)), owner)
    mine = signed_in(owner)
    page = mine.get(f"/runs/{trace.pk}/rows/?goal=&start=0&count=50").content.decode()
    rows = re.findall(r'<a class="r ([^"]*)".*?data-s="(\d+)".*?</a>', page, re.DOTALL)
    assert [key for kinds, key in rows if "gone" in kinds] == ["6", "8"]
    tags = re.findall(r'<span class="tag">([^<]+)</span>', page)
    assert tags == ["micro", "Level 1", "Level 1"]
    for sequence, said in ((2, "whole in the newest"), (4, "changed by micro"),
                           (6, "no longer in the newest"), (10, "not yet")):  # fmt: skip
        assert said in mine.get(f"/runs/{trace.pk}/messages/{sequence}/").content.decode(), sequence


# Cost --------------------------------------------------------------------------------------


def cost(client: Client, address: str) -> tuple[int, int]:
    """Queries and bytes of a page."""
    from django.db import connection

    with CaptureQueriesContext(
        connection,
    ) as queries:
        answer = client.get(address)
    assert answer.status_code == 200
    return len(queries), len(answer.content)


def test_a_run_page_costs_the_same_however_long_the_run(owner: User) -> None:
    mine = signed_in(owner)
    short, big = long(40).store(owner), long(4_000).store(owner)
    queries, size = cost(mine, f"/runs/{short.pk}/")
    more_queries, more_size = cost(mine, f"/runs/{big.pk}/")
    assert queries == more_queries <= 12
    assert abs(more_size - size) < 100
    assert more_size <= 100_000


def test_a_plan_of_a_thousand_goals_stays_a_small_page(owner: User) -> None:
    story = Story()
    story.plan(add=[f"Part {n}" for n in range(1, 1001)], focus="1")
    for n in range(1, 901):
        story.plan(done=str(n), summary="done", focus=str(n + 1))
    trace = story.store(owner)
    mine = signed_in(owner)
    queries, size = cost(mine, f"/runs/{trace.pk}/")
    assert queries <= 12
    assert size <= 100_000
    page = mine.get(f"/runs/{trace.pk}/").content.decode()
    assert "900 earlier goals" in page
    assert "Part 901" in page
    earlier = mine.get(f"/runs/{trace.pk}/goals/?earlier=1").content.decode()
    assert "Part 900" in earlier
    assert "Part 901" not in earlier


def test_the_list_of_runs_costs_the_same_with_many(owner: User) -> None:
    mine = signed_in(owner)
    for n in range(3):
        Story(f"Run {n}").store(owner)
    few, _ = cost(mine, "/runs/")
    for n in range(60):
        Story(f"More {n}").store(owner)
    many, _ = cost(mine, "/runs/")
    assert many == few <= 12


def test_older_runs_come_by_pages_each_once(owner: User) -> None:
    made = {Story(f"Run {n}").store(owner).pk for n in range(120)}
    mine = signed_in(owner)
    seen: list[str] = []
    address = "/runs/"
    while address:
        page = mine.get(address).content.decode()
        seen += re.findall(r'<tr id="run-(\w+)"', page)
        following = re.search(r'href="(/runs/\?[^"]*cursor=[^"]+)"', page)
        address = following[1].replace("&amp;", "&") if following else ""
    assert len(seen) == 120
    assert set(seen) == made


# Forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("mission", "  "), ("temperature", "hot"), ("temperature", "7"), ("max_steps", "x"),
     ("context_window", "0"), ("context_window", "nan")],
)  # fmt: skip
def test_a_wrong_field_is_told_by_its_name_and_starts_nothing(
    owner: User, field: str, value: str
) -> None:
    form: dict[str, Any] = {"mission": "Count", "provider": "scripted", "preset": "cyber"}
    answer = signed_in(owner).post("/runs/new/", form | {field: value})
    assert answer.status_code == 422
    assert f'id="{field}-error"' in answer.content.decode()
    assert not Trace.objects.exists()


def test_a_provider_that_lacks_its_key_is_not_started(owner: User) -> None:
    form = {"mission": "Count", "provider": "openai", "preset": "cyber", "model": "some-model"}
    page = signed_in(owner).post("/runs/new/", form)
    assert page.status_code == 422
    assert "OPENAI_API_KEY" in page.content.decode()
    assert not Trace.objects.exists()


def test_a_folder_that_only_an_admin_may_name_is_told_beside_its_field(owner: User) -> None:
    form = {"mission": "Count", "provider": "scripted", "preset": "cyber", "workspace": "/etc"}
    page = signed_in(owner).post("/runs/new/", form)
    assert page.status_code == 422
    assert 'id="workspace-error"' in page.content.decode()
    assert not Trace.objects.exists()


def test_what_is_asked_for_by_an_open_page_is_refused_in_a_notice(owner: User) -> None:
    trace = commands.start(owner, "Look", RunConfig(), shared=True)
    viewer = signed_in(person("vera", "viewer"))
    part = {"HX-Request": "true"}
    refused = viewer.post(f"/runs/{trace.pk}/do/stop/", headers=part).content.decode()
    assert refused.startswith('<p class="errors" role="alert">')
    assert "operator" in refused
    gone = viewer.get("/runs/000000000000/", headers=part)
    assert gone.status_code == 404
    assert "<html" not in gone.content.decode()


def test_a_run_is_started_with_what_the_form_says(owner: User) -> None:
    form = {
        "mission": "Count", "provider": "scripted", "preset": "explore", "max_steps": "7",
        "temperature": "0.5", "language": "zh", "shared": "1",
    }  # fmt: skip
    answer = signed_in(owner).post("/runs/new/", form)
    trace = Trace.objects.get()
    assert answer["Location"] == f"/runs/{trace.pk}/"
    assert (trace.mission, trace.preset, trace.shared, trace.owner) == (
        "Count",
        "explore",
        True,
        owner,
    )
    for piece in ('"max_steps":7', '"temperature":0.5', '"language":"zh"'):
        assert piece in trace.config


def test_a_form_with_a_wrong_number_never_loses_the_mission(owner: User) -> None:
    form = {"mission": "Count <stars>", "provider": "scripted", "preset": "cyber", "max_steps": "x"}
    page = signed_in(owner).post("/runs/new/", form).content.decode()
    assert "Count &lt;stars&gt;</textarea>" in page


def test_a_child_run_leads_back_to_its_parent(owner: User) -> None:
    trace = store_bundle(forked(), owner)
    child = Trace.objects.get(parent_trace=trace)
    page = signed_in(owner).get(f"/runs/{child.pk}/").content.decode()
    assert f"/runs/{trace.pk}/messages/3/" in page


def test_every_answer_keeps_a_strict_policy(owner: User) -> None:
    trace = planned().store(owner)
    policy = signed_in(owner).get(f"/runs/{trace.pk}/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy


def test_modules_have_one_name_each_also_where_files_are_hashed(owner: User) -> None:
    """Scripts import each other by plain names; a page that named one otherwise ran it twice."""
    trace = planned().store(owner)
    page = signed_in(owner).get(f"/runs/{trace.pk}/").content.decode()
    modules = re.findall(r'<script type="module" src="([^"]+)"', page)
    assert modules == ["/static/js/app.js", "/static/js/live.js", "/static/js/keys.js"]
    for template in (ROOT / "templates").rglob("*.html"):
        for tag in re.findall(r'<script type="module"[^>]*>', template.read_text()):
            assert "{% static " not in tag, template


def test_no_page_has_inline_script_or_style(owner: User) -> None:
    trace = planned().store(owner)
    for address in [*pages_of(trace)[:2], "/runs/", "/runs/new/", "/skills/", "/nowhere/"]:
        page = signed_in(owner).get(address, follow=True).content.decode()
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=\"", page), address


def test_pieces_that_are_kept_do_not_leak_between_people(owner: User) -> None:
    """Rendered pieces are kept by trace and event: a viewer must not get an operator's."""
    from traces import fragments

    trace = commands.start(owner, "Look", RunConfig(), shared=True)
    commands.pause(trace, by=owner)
    upto, mine = fragments.batch(trace.pk, 0, "en", True)
    _, theirs = fragments.batch(trace.pk, 0, "en", False)
    assert upto == Trace.objects.get(pk=trace.pk).last_event
    assert "Resume" in mine
    assert "Resume" not in theirs
