"""Who may see and do what: roles, visible traces, API tokens, one-time sign-in links.

Source: docs/access.md.
"""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from typing import Literal, TypeAlias

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser, AnonymousUser, Group
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.types import sha256
from traces import trees
from traces.models import ApiToken, SignInLink, Trace

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")

Person: TypeAlias = AbstractUser | AnonymousUser

LINK_LIFETIME = timedelta(minutes=15)
TOKEN_SEEN_EVERY = timedelta(minutes=1)

_TRACE_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class RoleNeeded(PermissionDenied):
    """The person's role does not allow this; ``str(error)`` says which one does."""


# Roles -------------------------------------------------------------------------------------


def role_of(user: Person) -> Role | None:
    """The highest role that ``user`` has; None for somebody who is not signed in or was locked
    out. A superuser is an admin; a user without any of the three groups is a viewer."""
    if not isinstance(user, AbstractUser) or not user.is_active:
        return None
    if user.is_superuser:
        return "admin"
    groups = _group_names(user)
    return next((role for role in reversed(ROLES) if role in groups), "viewer")


def has_role(user: Person, role: Role) -> bool:
    own = role_of(user)
    return own is not None and ROLES.index(own) >= ROLES.index(role)


def require(user: Person, role: Role) -> None:
    """Raises RoleNeeded unless ``user`` has ``role`` or a higher one."""
    if not has_role(user, role):
        own = role_of(user)
        has = "you are not signed in" if own is None else f"yours is {own}"
        raise RoleNeeded(f"this needs the role {role}; {has}")


def set_role(user: AbstractUser, role: Role) -> None:
    """Give ``user`` exactly this one of the three roles."""
    user.groups.remove(*Group.objects.filter(name__in=ROLES))
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    user.__dict__.pop("_group_names", None)


def _group_names(user: AbstractUser) -> frozenset[str]:
    """Kept on the user object: it lives as long as one request, and templates ask often."""
    if "_group_names" not in user.__dict__:
        user.__dict__["_group_names"] = frozenset(user.groups.values_list("name", flat=True))
    return user.__dict__["_group_names"]


# Traces ------------------------------------------------------------------------------------

# Sub-agents' traces hang under the trace that spawned them at any depth, and are as visible as
# their root. "shared" is a boolean on every database, so that the bare column is a condition.
_CHILDREN_OF_VISIBLE = """
WITH RECURSIVE seen(id) AS (
    SELECT id FROM traces_trace WHERE parent_trace_id IS NULL AND (owner_id = %s OR shared)
    UNION ALL
    SELECT child.id FROM traces_trace child JOIN seen ON child.parent_trace_id = seen.id
) SELECT id FROM seen
"""


def visible_traces(user: Person) -> QuerySet[Trace]:
    """Own and shared traces, with all their sub-agents; every trace for an admin."""
    role = role_of(user)
    if role is None:
        return Trace.objects.none()
    if role == "admin":
        return Trace.objects.all()
    root = Q(parent_trace=None) & (Q(owner=user.pk) | Q(shared=True))
    children = RawSQL(_CHILDREN_OF_VISIBLE, [user.pk])  # noqa: S611 - a constant statement
    child = Q(parent_trace__isnull=False, pk__in=children)
    return Trace.objects.filter(root | child)


def find_trace(user: Person, trace_id: str) -> Trace:
    """The trace, if ``user`` may see it. Raises NotFound otherwise, in the same words whether
    it does not exist or is somebody else's."""
    trace = None
    if _TRACE_ID.fullmatch(trace_id):
        trace = Trace.objects.select_related("owner").filter(pk=trace_id).first()
    if trace is None or not can_see(user, trace):
        raise NotFound("trace", trace_id)
    return trace


def can_see(user: Person, trace: Trace) -> bool:
    role = role_of(user)
    if role is None or role == "admin":
        return role is not None
    root = trace if trace.parent_trace_id is None else trees.root(trace.pk).get()
    return root.shared or root.owner_id == user.pk


# API tokens --------------------------------------------------------------------------------


def create_token(user: AbstractUser, name: str) -> tuple[ApiToken, str]:
    """A new token of ``user`` and its text, which is shown now and never again.
    Raises InvalidInput for a name that is empty, too long or not printable."""
    name = name.strip()
    if not name or len(name) > 100 or not name.isprintable():
        raise InvalidInput("a token's name has 1 to 100 printable characters")
    text = f"ca_{secrets.token_urlsafe(32)}"
    row = ApiToken.objects.create(user=user, name=name, token_sha256=_hash(text), prefix=text[:8])
    return row, text


def revoke_token(user: Person, token_id: int) -> ApiToken:
    """Own tokens; any for an admin. Raises NotFound. Revoking twice changes nothing."""
    tokens = ApiToken.objects.select_related("user").filter(pk=token_id)
    if not has_role(user, "admin"):
        tokens = tokens.filter(user=user.pk)
    token = tokens.first()
    if token is None:
        raise NotFound("token", token_id)
    return revoke(token)


def revoke(token: ApiToken) -> ApiToken:
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
    return token


def user_of_token(text: str) -> AbstractUser | None:
    """Whose token ``text`` is; None where it is unknown, revoked or its user locked out.
    Notes when it was last used, at most once a minute."""
    token = (
        ApiToken.objects.select_related("user")
        .filter(token_sha256=_hash(text), revoked_at=None, user__is_active=True)
        .first()
    )
    if token is None:
        return None
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - TOKEN_SEEN_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token.user


# Sign-in links -----------------------------------------------------------------------------


def create_sign_in_link(user: AbstractUser) -> str:
    """The token of a link that signs ``user`` in once, within 15 minutes."""
    text = secrets.token_urlsafe(32)
    SignInLink.objects.create(
        user=user, token_sha256=_hash(text), expires_at=timezone.now() + LINK_LIFETIME
    )
    return text


def use_sign_in_link(text: str) -> AbstractUser | None:
    """The user whom the link signs in, and the link is spent; None where it is unknown, spent,
    too old, or its user locked out. Of two at once exactly one succeeds."""
    now = timezone.now()
    link = SignInLink.objects.filter(token_sha256=_hash(text), user__is_active=True)
    if not link.filter(used_at=None, expires_at__gt=now).update(used_at=now):
        return None
    return link.select_related("user").get().user


def local_admin() -> AbstractUser:
    """The user "admin" of an installation for one person: a superuser without a password, made
    on the first start and signed in by link."""
    users = get_user_model()
    user, made = users.objects.get_or_create(
        username="admin", defaults={"is_staff": True, "is_superuser": True}
    )
    if made:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass"))
