"""Addresses of the pages of traces, and of their WebSockets."""

from django.urls import path

from traces import consumers
from traces.views import account, acts, beside, call, compare, imports, lab, ledgers, run, runs

urlpatterns = [
    path("", run.to_runs, name="home"),
    path("sign-in/", account.SignIn.as_view(), name="sign-in"),
    path("sign-in/<str:token>/", account.sign_in_link, name="sign_in_link"),
    path("sign-out/", account.SignOut.as_view(), name="sign_out"),
    path("account/tokens/", account.tokens, name="tokens"),
    path("account/tokens/<int:token>/revoke/", account.revoke_token, name="revoke_token"),
    path("runs/", runs.runs, name="runs"),
    path("runs/new/", runs.new_run, name="new_run"),
    path("runs/demo/", runs.demo, name="demo"),
    path("runs/import/", imports.import_page, name="import"),
    path("runs/import/found/", imports.found, name="found_sessions"),
    path("runs/import/found/one/", imports.import_found, name="import_found"),
    path("runs/<str:trace_id>/", run.run, name="run"),
    path("runs/<str:trace_id>/messages/<int:sequence>/", run.message, name="message"),
    path("runs/<str:trace_id>/rows/", run.rows, name="rows"),
    path("runs/<str:trace_id>/goals/", run.goals, name="goals"),
    path("runs/<str:trace_id>/where/", run.where, name="where"),
    path("runs/<str:trace_id>/open/", beside.open_rows, name="open_rows"),
    path("runs/<str:trace_id>/find/", beside.find_in_run, name="find"),
    path("runs/<str:trace_id>/timeline/", beside.show_timeline, name="timeline"),
    path("runs/<str:trace_id>/compactions/", ledgers.compactions, name="compactions"),
    path("runs/<str:trace_id>/injections/", ledgers.injections, name="injections"),
    path("runs/<str:trace_id>/knowledge/", ledgers.knowledge, name="knowledge"),
    path("runs/<str:trace_id>/knowledge/<str:name>/", ledgers.judge, name="judge"),
    path("runs/<str:trace_id>/commands/", ledgers.commands, name="commands"),
    path("runs/<str:trace_id>/compare/<str:other_id>/", compare.compare, name="compare"),
    path("runs/<str:trace_id>/lab/", lab.lab, name="lab"),
    path("runs/<str:trace_id>/rewind/", acts.go_back, name="rewind"),
    path("runs/<str:trace_id>/edit/", acts.edit, name="edit"),
    path("runs/<str:trace_id>/fork/", acts.fork, name="fork"),
    path("runs/<str:trace_id>/compact/", acts.compact, name="compact"),
    path("runs/<str:trace_id>/policy/", acts.policy, name="policy"),
    path("runs/<str:trace_id>/inject/", acts.inject, name="inject"),
    path("runs/<str:trace_id>/say/", run.say, name="say"),
    path("runs/<str:trace_id>/do/<str:name>/", run.act, name="act"),
    path("runs/<str:trace_id>/export/<str:format>/", run.export, name="export"),
    path("runs/<str:trace_id>/calls/<int:number>/", call.call, name="call"),
    path("runs/<str:trace_id>/calls/<int:number>/payload.json", call.payload, name="payload"),
]

websocket_urlpatterns = [
    path("ws/runs/", consumers.RunsConsumer.as_asgi()),
    path("ws/runs/<str:trace_id>/", consumers.RunConsumer.as_asgi()),
]
