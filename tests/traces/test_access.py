"""Who may see and do what."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import connection
from django.utils import timezone

from cyberagent.core.errors import InvalidInput, NotFound
from traces import access
from traces.models import ApiToken, SignInLink, Trace

pytestmark = pytest.mark.django_db


def person(name: str, role: str | None = None) -> User:
    user = User.objects.create_user(name)
    if role is not None:
        access.set_role(user, role)
    return user


def fresh(user: User) -> User:
    return User.objects.get(pk=user.pk)


# Roles -------------------------------------------------------------------------------------


def test_the_three_roles_are_groups_that_the_admin_can_offer():
    names = set(Group.objects.values_list("name", flat=True))
    assert {"viewer", "operator", "admin"} <= names


def test_a_user_without_a_group_is_a_viewer():
    assert access.role_of(person("ann")) == "viewer"


def test_a_superuser_is_an_admin():
    assert access.role_of(User.objects.create_superuser("root")) == "admin"


def test_the_highest_of_several_groups_counts():
    ann = person("ann")
    ann.groups.add(*Group.objects.filter(name__in=["viewer", "operator"]))
    assert access.role_of(fresh(ann)) == "operator"


def test_setting_a_role_replaces_the_one_before():
    ann = person("ann", "admin")
    access.set_role(ann, "viewer")
    assert access.role_of(fresh(ann)) == "viewer"


def test_nobody_has_a_role_without_signing_in_or_when_locked_out():
    locked = person("ann", "admin")
    locked.is_active = False
    assert access.role_of(locked) is None
    assert access.role_of(AnonymousUser()) is None


@pytest.mark.parametrize(
    ("own", "needed", "allowed"),
    [
        ("viewer", "viewer", True),
        ("viewer", "operator", False),
        ("viewer", "admin", False),
        ("operator", "viewer", True),
        ("operator", "operator", True),
        ("operator", "admin", False),
        ("admin", "admin", True),
    ],
)
def test_a_role_includes_those_below_it(own, needed, allowed):
    ann = person("ann", own)
    if allowed:
        access.require(ann, needed)
    else:
        with pytest.raises(access.RoleNeeded, match=f"needs the role {needed}; yours is {own}"):
            access.require(ann, needed)


# Traces ------------------------------------------------------------------------------------


@pytest.fixture
def world():
    """Ann's private and shared traces with a grandchild each, Bob's private one, nobody's one.
    The children bear no owner, so that only their roots can speak for them."""
    ann, bob = person("ann", "operator"), person("bob", "operator")
    traces = {
        "ann": Trace.objects.create(owner=ann, mission="ann's"),
        "shared": Trace.objects.create(owner=ann, mission="ann's, shared", shared=True),
        "bob": Trace.objects.create(owner=bob, mission="bob's"),
        "nobody": Trace.objects.create(mission="nobody's"),
    }
    for name in ("ann", "shared"):
        child = Trace.objects.create(mission="child", parent_trace=traces[name])
        traces[f"{name} grandchild"] = Trace.objects.create(mission="x", parent_trace=child)
        traces[f"{name} child"] = child
    return ann, bob, traces


def seen_by(user, traces):
    ids = set(access.visible_traces(user).values_list("pk", flat=True))
    listed = {name for name, trace in traces.items() if trace.pk in ids}
    found = set()
    for name, trace in traces.items():
        try:
            access.find_trace(user, trace.pk)
            found.add(name)
        except NotFound:
            pass
    assert listed == found, "the list and the single look-up must agree"
    return listed


def test_people_see_their_own_and_shared_traces_with_all_sub_agents(world):
    ann, bob, traces = world
    shared = {"shared", "shared child", "shared grandchild"}
    assert seen_by(ann, traces) == {"ann", "ann child", "ann grandchild"} | shared
    assert seen_by(bob, traces) == {"bob"} | shared


def test_a_child_is_as_visible_as_its_root_whatever_it_says_itself(world):
    _, bob, traces = world
    Trace.objects.filter(pk=traces["ann child"].pk).update(shared=True, owner=bob)
    assert "ann child" not in seen_by(bob, traces)


def test_who_may_see_a_trace_costs_the_same_however_deep_it_stands(
    world, django_assert_num_queries
):
    ann, bob, traces = world
    deep = traces["shared grandchild"]
    for _ in range(6):
        deep = Trace.objects.create(mission="x", parent_trace=deep)
    for who in (ann, bob):
        access.role_of(who)
        trace = Trace.objects.get(pk=deep.pk)
        with django_assert_num_queries(1):
            assert access.can_see(who, trace)


def test_an_admin_sees_every_trace_and_a_stranger_none(world):
    _, _, traces = world
    assert seen_by(person("root", "admin"), traces) == set(traces)
    assert seen_by(AnonymousUser(), traces) == set()


def test_a_hidden_trace_is_refused_in_the_words_of_one_that_does_not_exist(world):
    _, bob, traces = world
    hidden = traces["ann"].pk
    with pytest.raises(NotFound) as error:
        access.find_trace(bob, hidden)
    Trace.objects.filter(parent_trace__parent_trace=hidden).delete()
    Trace.objects.filter(parent_trace=hidden).delete()
    Trace.objects.filter(pk=hidden).delete()
    with pytest.raises(NotFound) as gone:
        access.find_trace(bob, hidden)
    assert str(error.value) == str(gone.value)


@pytest.mark.parametrize("odd", ["", "../../etc", "a\0b", "\ud800", "x" * 100, "' OR 1=1 --", "中"])
def test_odd_ids_are_simply_not_found(odd):
    with pytest.raises(NotFound):
        access.find_trace(person("ann", "admin"), odd)


# Tokens ------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_only_its_hash_is_kept():
    row, text = access.create_token(person("ann"), "ci")
    stored = ApiToken.objects.get(pk=row.pk)
    assert text.startswith("ca_")
    assert stored.token_sha256 == sha256(text.encode()).hexdigest()
    assert all(text not in str(v) for v in ApiToken.objects.values_list().get(pk=row.pk))


def test_a_token_stands_for_its_user_until_it_is_revoked():
    ann = person("ann")
    row, text = access.create_token(ann, "ci")
    assert access.user_of_token(text) == ann
    assert access.user_of_token(text + "x") is None
    access.revoke_token(ann, row.pk)
    assert access.user_of_token(text) is None


def test_a_token_of_somebody_locked_out_is_worth_nothing():
    ann = person("ann")
    _, text = access.create_token(ann, "ci")
    User.objects.filter(pk=ann.pk).update(is_active=False)
    assert access.user_of_token(text) is None


def test_the_last_use_is_noted_at_most_once_a_minute():
    row, text = access.create_token(person("ann"), "ci")
    access.user_of_token(text)
    first = ApiToken.objects.get(pk=row.pk).last_used_at
    access.user_of_token(text)
    assert ApiToken.objects.get(pk=row.pk).last_used_at == first
    ApiToken.objects.filter(pk=row.pk).update(last_used_at=first - timedelta(seconds=61))
    access.user_of_token(text)
    assert ApiToken.objects.get(pk=row.pk).last_used_at >= first


def test_only_the_owner_and_admins_revoke_a_token():
    ann, bob, root = person("ann"), person("bob", "operator"), person("root", "admin")
    row, _ = access.create_token(ann, "ci")
    with pytest.raises(NotFound):
        access.revoke_token(bob, row.pk)
    once = access.revoke_token(root, row.pk).revoked_at
    assert access.revoke_token(ann, row.pk).revoked_at == once


@pytest.mark.parametrize("name", ["", "   ", "x" * 101, "a\0b", "a\nb"])
def test_a_token_needs_a_plain_name(name):
    with pytest.raises(InvalidInput):
        access.create_token(person("ann"), name)


# Sign-in links -----------------------------------------------------------------------------


def test_a_link_signs_in_once():
    ann = person("ann")
    text = access.create_sign_in_link(ann)
    assert access.use_sign_in_link(text) == ann
    assert access.use_sign_in_link(text) is None


def test_only_the_hash_of_a_link_is_kept():
    text = access.create_sign_in_link(person("ann"))
    assert SignInLink.objects.get().token_sha256 == sha256(text.encode()).hexdigest()


def test_a_link_lives_for_fifteen_minutes():
    text = access.create_sign_in_link(person("ann"))
    left = SignInLink.objects.get().expires_at - timezone.now()
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    SignInLink.objects.update(expires_at=timezone.now())
    assert access.use_sign_in_link(text) is None


def test_an_unknown_link_or_one_of_somebody_locked_out_is_worth_nothing():
    ann = person("ann")
    text = access.create_sign_in_link(ann)
    User.objects.filter(pk=ann.pk).update(is_active=False)
    assert access.use_sign_in_link(text) is None
    assert access.use_sign_in_link("\ud800") is None


@pytest.mark.django_db(transaction=True)
def test_of_many_who_use_one_link_at_once_one_is_signed_in():
    text = access.create_sign_in_link(person("ann"))

    def use(_: int) -> bool:
        try:
            return access.use_sign_in_link(text) is not None
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(use, range(8))) == 1


def test_the_local_admin_is_made_once_and_has_no_password():
    admin = access.local_admin()
    assert access.local_admin() == admin
    assert access.role_of(admin) == "admin"
    assert not admin.has_usable_password()
