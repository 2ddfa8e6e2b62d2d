"""``manage.py token``: API tokens for programs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.errors import NotFound
from traces import access
from traces.management.terminal import TerminalCommand, owner_named
from traces.models import ApiToken


class Command(TerminalCommand):
    help = "Make an API token (shown once), list them, or revoke one."
    examples = """
  manage.py token ci --user mei             a token of mei's, with mei's role
  manage.py token notebook                  a token of the local admin's
  manage.py token --list
  manage.py token --revoke 3
  curl -H "Authorization: Bearer ca_…" http://127.0.0.1:8000/api/v1/traces
"""

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("name", nargs="?", help="what the token is for")
        what.add_argument("--list", action="store_true", help="list tokens, without their text")
        what.add_argument("--revoke", type=int, metavar="ID", help="make a token useless")
        parser.add_argument("--user", help="whose token (default: the local user admin)")

    def work(
        self, *, name: str | None, list: bool, revoke: int | None, user: str | None, **_: Any
    ) -> None:
        if list:
            for token in ApiToken.objects.select_related("user").order_by("pk"):
                self.say(_line(token))
        elif revoke is not None:
            self.say(f"revoked: {_line(access.revoke(_existing_token(revoke)))}")
        else:
            _, text = access.create_token(owner_named(user), name or "")
            self.say(text)


def _existing_token(number: int) -> ApiToken:
    token = ApiToken.objects.select_related("user").filter(pk=number).first()
    if token is None:
        raise NotFound("token", number)
    return token


def _line(token: ApiToken) -> str:
    state = "revoked" if token.revoked_at else "valid"
    used = f"{token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never used"
    return f"{token.pk}  {token.prefix}…  {token.user}  {token.name}  {state}  {used}"
