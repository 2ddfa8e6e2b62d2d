"""``manage.py up``: the dashboard with everything it needs, in one process."""

from __future__ import annotations

# Before any other import of Twisted: this one decides which event loop Twisted runs on.
import daphne.server  # isort: skip

import errno
import ipaddress
import logging
import os
import socket
from typing import Any

from channels.routing import get_default_application
from daphne.endpoints import build_endpoint_description_strings
from django.conf import settings
from django.core.management.base import CommandParser
from django.db import connection

from cyberagent import __version__
from cyberagent.core.errors import InvalidInput
from traces import first_run
from traces.access import create_sign_in_link, local_admin
from traces.management.terminal import TerminalCommand, keep_address

DEFAULT_PORT = 8000
PORTS_TRIED = 20


class Command(TerminalCommand):
    help = "Start the dashboard: web server, live streaming and, on the embedded default, the runs."
    examples = f"""
  manage.py up                       on http://127.0.0.1:{DEFAULT_PORT}, or the next free port
  manage.py up --port 9000
  manage.py up --no-demo             without the demo run and the sample of a first start
  DATABASE_URL=sqlite:////tmp/x.sqlite3 manage.py up
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument(
            "--port", type=int, help=f"exactly this port (default: {DEFAULT_PORT} or the next free)"
        )
        parser.add_argument(
            "--no-demo", action="store_true", help="put nothing into an empty installation"
        )

    def work(self, *, host: str, port: int | None, no_demo: bool, **_: Any) -> int | None:
        chosen = choose_port(host, port)
        self._warn(host, port, chosen)
        connection.close()
        # Loading the application also has it start what drives the runs, once the server runs.
        server = daphne.server.Server(
            application=get_default_application(),
            endpoints=build_endpoint_description_strings(host=host, port=chosen),
            ready_callable=lambda: self._announce(host, chosen, demo=not no_demo),
            verbosity=0,
        )
        server.run()
        if server.abort_start:
            raise InvalidInput(f"port {chosen} of {host} was taken just now; try again")
        self._leave()

    def _leave(self) -> None:
        """End at once: the server is closed and the runs have given their leases back. Waiting
        for threads that still answer a request, or taking the interpreter apart, would only
        make the stop slow; what they had not committed is not written."""
        connection.close()
        logging.shutdown()
        self.stdout.flush()
        self.stderr.flush()
        os._exit(0)

    def _announce(self, host: str, port: int, *, demo: bool) -> None:
        """The port is open already: whoever connects now is served a moment later."""
        admin = local_admin()
        if demo:
            first_run.furnish(admin)
        link = create_sign_in_link(admin)
        connection.close()
        keep_address(address(host, port))
        self.say(f"CyberAgent {__version__}")
        self.say(f"Data: {settings.DATA_DIR}")
        self.say(f"Sign in: {address(host, port)}/sign-in/{link}/")
        self.say("The link works once, within 15 minutes; another: manage.py user admin")

    def _warn(self, host: str, asked: int | None, port: int) -> None:
        if asked is None and port != DEFAULT_PORT:
            self.stderr.write(f"port {DEFAULT_PORT} is in use; this is on {port}")
        if not is_loopback(host):
            self.stderr.write(
                f"{host} can be reached from other machines; everybody has to sign in, and "
                "ALLOWED_HOSTS must name the hosts that are used"
            )


def choose_port(host: str, asked: int | None) -> int:
    """The port asked for, or the first free one from the default on. Raises InvalidInput."""
    if asked is not None:
        if not 0 < asked < 65536:
            raise InvalidInput(f"a port is from 1 to 65535, not {asked}")
        if not is_free(host, asked):
            raise InvalidInput(f"port {asked} of {host} is in use")
        return asked
    for port in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED):
        if is_free(host, port):
            return port
    raise InvalidInput(f"the ports {DEFAULT_PORT} to {port} of {host} are all in use")


def is_free(host: str, port: int) -> bool:
    """Whether the server could listen there now. Raises InvalidInput for a host that is not
    an address of this machine."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"{host!r} is not an address: {error}") from None
    with socket.socket(family, kind) as probe:
        # As the server itself does: a port whose last connections still linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except PermissionError:
            raise InvalidInput(f"port {port} needs more rights than this user has") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput(f"{host} is not an address of this machine") from None
            return False
    return True


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(host: str, port: int) -> str:
    """Where a browser on this machine finds the server."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
