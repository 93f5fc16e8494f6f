"""Named failure points: the moments at which the fault suite ends a process, stops it, or takes an answer away.

In the product a point is one comparison: nothing here can end a process.  What happens at a point is given by whoever
watches, and only tests do.  Each point stands behind something that another process can already see (a commit, a send,
a sync, an answer) or right before it, for these are the moments at which a process that ends leaves a question."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[str], None]

POINTS: dict[str, tuple[str, str]] = {
    "server.owned": ("server", "shards are taken, none of their executions is resumed"),
    "server.restored": ("server", "open executions are resumed"),
    "server.handed_over": ("server", "shards are let go, nobody has taken them"),
    "server.registered": ("server", "a worker's session exists, the worker does not know"),
    "server.advancing": ("server", "a decision is made and not committed"),
    "server.advanced": ("server", "a decision is committed, nobody was told"),
    "server.appended": ("server", "facts of a shard of another server are recorded, it does not know"),
    "server.delivered": ("server", "claimed commands are handed to their sessions"),
    "server.recorded": ("server", "facts are recorded, their worker has no answer"),
    "server.released": ("server", "what a dead session held is given back"),
    "worker.taken": ("worker", "a command has arrived"),
    "worker.ran": ("worker", "the tools of a command have run, nothing of it is stored"),
    "worker.stored": ("worker", "results are stored, no event names them"),
    "worker.persisted": ("worker", "finished rows of a frame are recorded while it runs"),
    "worker.sending": ("worker", "facts are ready and not sent"),
    "worker.answered": ("worker", "facts are recorded and answered, nobody acted on it"),
    "projector.owned": ("projector", "shards are taken, nothing of them is read"),
    "projector.folded": ("projector", "a batch is folded and not written"),
    "projector.written": ("projector", "rows and watermark are committed, nobody was told"),
    "checkpoint.due": ("checkpointer", "a checkpoint is due and not committed"),
    "checkpoint.committed": ("checkpointer", "a checkpoint is committed"),
    "snapshot.taken": ("snapshotter", "a state is encoded and not saved"),
    "snapshot.saved": ("snapshotter", "a snapshot is saved"),
    "reaper.released": ("reaper", "what sessions of the dead held is given back"),
    "payload.written": ("payload store", "bytes are written and not synced"),
    "payload.synced": ("payload store", "bytes are synced under a temporary name"),
    "payload.renamed": ("payload store", "the name exists, its folder is not synced"),
    "payload.settled": ("payload store", "name and bytes are durable, nobody was told"),
}
"""By name: the role, and what is true at this moment."""

_watch: Watch | None = None


def point(name: str) -> None:
    """Here a process may end."""
    if _watch is not None:
        _watch(name)


def watch_points(watch: Watch | None) -> None:
    """Let `watch` be called at every point; it may raise what the caller of the point takes for a lost answer."""
    global _watch  # noqa: PLW0603 - one per process, set before anything runs
    _watch = watch
