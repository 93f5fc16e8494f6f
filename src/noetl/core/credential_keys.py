"""Keys that look as if a credential stood behind them.  What stands there is never written into an event: it travels by
reference, like anything that is too large.

The names are words: `accessToken`, `ACCESS_TOKEN` and `x-access-token` are one.  A wrong guess costs a reference and
loses nothing, so the rule may be generous; the words of paging are left out because cursors are what routing reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from noetl.core.secret import HIDDEN

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# The last word of a name, or its last two.
_LAST = frozenset(
    (
        *("password", "passwd", "pwd", "passphrase", "secret", "secrets", "token", "credential", "credentials"),
        *("authorization", "apikey", "bearer", "jwt", "cookie", "dsn"),
    )
)
_LAST_TWO = frozenset(
    (
        *(("api", "key"), ("private", "key"), ("secret", "key"), ("access", "key"), ("signing", "key")),
        *(("encryption", "key"), ("account", "key"), ("master", "key"), ("shared", "key"), ("ssh", "key")),
        *(("connection", "string"), ("auth", "header")),
    )
)
# A token that says where a listing goes on opens no door.
_PAGING = frozenset(
    (
        *("next", "page", "paging", "pagination", "continuation", "continue", "cursor", "sync", "delta", "resume"),
        *("start", "prev", "previous", "marker", "offset", "scroll", "skip", "list", "change", "batch", "last"),
    )
)
_DEPTH_MAX = 64
KEY_CHARS_MAX = 200

Path = tuple[str | int, ...]


@lru_cache(maxsize=8_192)
def _is_credential_name(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or (words[-1] == "token" and len(words) > 1 and words[-2] in _PAGING):
        return False
    return words[-1] in _LAST or tuple(words[-2:]) in _LAST_TWO


def is_credential_key(key: object) -> bool:
    return isinstance(key, str) and len(key) <= KEY_CHARS_MAX and _is_credential_name(key)


def credential_at(value: object, path: Sequence[object] = ()) -> Path | None:
    """Where something credential-shaped stands: in the value, or at the path that leads to it.  None for nothing."""
    if any(is_credential_key(key) for key in path) and _is_kept(value):
        return tuple(str(key) for key in path)
    found = _search(value, 0)
    return None if found is None else (*(str(key) for key in path), *found)


def is_credential(mentions: Iterable[tuple[str, ...]], value: object) -> bool:
    """Whether a value holds something credential-shaped, or came as text from a path that ends with such a name."""
    if isinstance(value, str):
        return value != "" and any(is_credential_key(mention[-1]) for mention in mentions)
    return _search(value, 0) is not None


def _is_kept(value: object) -> bool:
    """Nothing, true and false are no credentials, whatever their name is."""
    return value is not None and not isinstance(value, bool) and value not in ("", {}, [])


def _search(value: object, depth: int) -> Path | None:
    if depth > _DEPTH_MAX:
        return ("…",)  # what cannot be looked through counts as found
    if isinstance(value, Mapping):
        for key, item in value.items():
            if is_credential_key(key) and _is_kept(item):
                return (str(key),)
            found = _search(item, depth + 1)
            if found is not None:
                return (str(key), *found)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            found = _search(item, depth + 1)
            if found is not None:
                return (number, *found)
    return None


def without_credentials(value: object) -> object:
    """A copy for people to look at: what stands under a credential's name is hidden."""
    return value if _search(value, 0) is None else _hidden(value)


def _hidden(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_credential_key(key) and _is_kept(item) else _hidden(item) for key, item in value.items()
        }
    return [_hidden(item) for item in value] if isinstance(value, list | tuple) else value
