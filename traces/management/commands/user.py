"""``manage.py user``: people and their roles, without the admin."""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser

from cyberagent.core.errors import InvalidInput
from traces.access import ROLES, Role, create_sign_in_link, role_of, set_role
from traces.management.terminal import TerminalCommand, last_address


class Command(TerminalCommand):
    help = "Make a user or change one's role, and print a one-time sign-in link or set a password."
    examples = """
  manage.py user mei --role operator        make mei, print a sign-in link (15 minutes, one use)
  manage.py user mei --role viewer          change the role, print a new link
  manage.py user mei --password             ask for a password twice and set it
  echo "$PASSWORD" | manage.py user mei --password      set it from a pipe
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the user's name for signing in")
        parser.add_argument("--role", choices=ROLES, help="default for a new user: viewer")
        parser.add_argument("--password", action="store_true", help="set a password, no link")
        parser.add_argument(
            "--url", help="where the dashboard is, for the link (default: where it last started)"
        )

    def work(
        self, *, name: str, role: Role | None, password: bool, url: str | None, **_: Any
    ) -> None:
        secret = _ask_password() if password else None
        user = find_or_make_user(name, password=secret)
        if role is not None:
            set_role(user, role)
        self.say(f"{user.get_username()} is {role_of(user)}")
        if secret is None:
            link = create_sign_in_link(user)
            base = (url or last_address()).rstrip("/")
            self.say(f"Sign in (once, within 15 minutes): {base}/sign-in/{link}/")


def find_or_make_user(name: str, *, password: str | None = None) -> Any:
    """The user called ``name``, made if need be, with this password where one is given.
    Raises InvalidInput for a name or password that Django's own rules refuse."""
    users = get_user_model()
    user = users.objects.filter(username=name).first() if "\0" not in name else None
    try:
        if user is None:
            user = users(username=name)
            user.set_unusable_password()
            user.full_clean(exclude=["password"])
        if password is not None:
            validate_password(password, user)
            user.set_password(password)
    except ValidationError as error:
        raise InvalidInput(" ".join(error.messages)) from None
    user.save()
    return user


def _ask_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass("Password: ")
    if first != getpass.getpass("Again: "):
        raise InvalidInput("the two passwords differ")
    return first
