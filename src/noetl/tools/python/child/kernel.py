"""The few calls of Linux that the standard library lacks.  Without them children still work and are only less
guarded, so a kernel that refuses one is no error."""

from __future__ import annotations

import ctypes
import os
import resource

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36

# In this order: load modules, raw devices, ptrace, administer, reboot, exceed resource limits, observe (since
# Linux 6.15 that includes the memory of others), load kernel programs, checkpoint.
DROPPED_CAPABILITIES = (16, 17, 19, 21, 22, 24, 38, 39, 40)
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def die_with_parent(signal_number: int) -> None:
    """The signal is sent when the *thread* that started this process ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def adopt_orphans() -> None:
    """Descendants that lose their parent become our children, whatever session they moved to."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_memory() -> None:
    """Other processes of this user can read neither our memory nor our environment.  Inherited by fork."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_capabilities() -> None:
    """For a worker that runs as root: user code cannot look into processes, raise its limits or change the
    machine.  It stays the owner of root's files."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # effective, permitted and inheritable of capabilities 0-31, then the same of 32-63
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets) != 0:
        return
    for capability in DROPPED_CAPABILITIES:
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        first = 3 * (capability // 32)
        for index in range(first, first + 3):
            sets[index] &= ~(1 << capability % 32) & 0xFFFFFFFF
    _libc.capset(header, sets)


def limit(kind: int, value: int) -> None:
    """Lower a limit for good.  A hard limit that is already lower stays."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def children_of_this_process() -> list[int]:
    """Empty when the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
