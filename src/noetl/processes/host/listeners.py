"""Where a host listens: a private Unix socket always, TCP when asked.  Beyond loopback only with a configured token."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from noetl.core.errors import SettingsInvalid
from noetl.processes.server.tokens import is_loopback
from noetl.settings import Settings

KEEP_ALIVE_SECONDS = 60
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listener:
    server: uvicorn.Server
    socket: socket.socket


def listener(app: ASGIApp, on: socket.socket) -> Listener:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http="httptools",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        date_header=False,
    )
    return Listener(uvicorn.Server(config), on)


def unix_socket(path: Path) -> socket.socket:
    """A private path, removed first if a killed host left it behind."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(previous)
    return listening


def tcp_socket(settings: Settings) -> socket.socket:
    if not is_loopback(settings.host) and settings.token is None:
        raise SettingsInvalid(
            f"NOETL_HOST {settings.host} can be reached from other machines: set NOETL_TOKEN, and NOETL_WORKER_TOKEN "
            "for workers, before listening there"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise SettingsInvalid(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; see NOETL_HOST and NOETL_PORT"
        ) from error
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
