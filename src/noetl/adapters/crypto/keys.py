"""Where the keys of credentials and payloads come from."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from noetl.core.errors import SettingsInvalid
from noetl.core.secret import KEY_BYTES, KEY_RULE, Secret, key_from_text, key_to_text

KeySource = Callable[[], Secret[bytes]]
"""Gives the key or raises SettingsInvalid.  May read a file."""


def given_key(key: Secret[bytes]) -> KeySource:
    return lambda: key


def file_key(path: Path) -> KeySource:
    """The key in a file that somebody else takes care of."""
    return partial(_read, path, what="NOETL_CREDENTIAL_KEY_FILE")


def payload_key(key: Secret[bytes] | None, file: Path | None) -> Secret[bytes] | None:
    """The key of payloads at rest, if one was set.  A file is read now: a wrong one means no start."""
    return key if file is None else _read(file, what="NOETL_PAYLOAD_KEY_FILE")


def home_key(path: Path) -> KeySource:
    """The key of an embedded home: its file is made when it is first needed, and never again."""
    return partial(_read_or_make, path)


def no_key() -> NoReturn:
    """The key of a process that was given none.  Making one up would seal what no other process can open."""
    raise SettingsInvalid(
        "this process has no key for credentials: set NOETL_CREDENTIAL_KEY_FILE or NOETL_CREDENTIAL_KEY "
        f"({KEY_RULE}), the same for the server and all its workers"
    )


def _read(path: Path, *, what: str) -> Secret[bytes]:
    try:
        text = path.read_text("ascii")
    except OSError as error:
        raise SettingsInvalid(f"{what}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""  # the error would quote the file
    try:
        return key_from_text(text)
    except ValueError:
        raise SettingsInvalid(f"{what}: {path} must hold {KEY_RULE}") from None


def _read_or_make(path: Path) -> Secret[bytes]:
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise SettingsInvalid(f"cannot make the key of the credentials {path}: {error.strerror}") from error
    mode = path.stat().st_mode
    if mode & 0o077:
        raise SettingsInvalid(f"others may read the key of the credentials: run `chmod 600 {path}`")
    return _read(path, what="the key of the credentials")


def _make(path: Path) -> None:
    """Complete or not there: written under a name of its own, synced, then linked to its place.  A link never
    replaces a file, so of several processes that make a key at once the first one wins and all read the same."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key_to_text(Secret(os.urandom(KEY_BYTES))) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
