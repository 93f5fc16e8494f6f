"""`python -m noetl.standin`: serves the stand-in on loopback and says where, once it listens."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys

import uvicorn

from noetl.standin.app import RATE_LIMIT_DEFAULT, StandIn

HOST = "127.0.0.1"
PORT_DEFAULT = 5555
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 60


class Server(uvicorn.Server):
    """Tells its address when requests can be answered, not earlier."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            sys.stdout.write(f"http://{HOST}:{sockets[0].getsockname()[1]}\n")
            sys.stdout.flush()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m noetl.standin", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help="0 lets the system choose")
    parser.add_argument(
        "--rate-limit",
        type=int,
        default=RATE_LIMIT_DEFAULT,
        metavar="R",
        help="requests per second of all patient endpoints together, 0 for no limit",
    )
    options = parser.parse_args(words)
    if not 0 <= options.port <= 65_535 or options.rate_limit < 0:
        parser.error("--port must be 0 to 65535 and --rate-limit at least 0")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, options.port))
    except OSError as error:
        sys.stderr.write(f"noetl.standin: cannot listen on {HOST}:{options.port}: {error.strerror}; use --port\n")
        return 1
    config = uvicorn.Config(
        StandIn(rate_limit=options.rate_limit),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(Server(config).serve(sockets=[listening]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
