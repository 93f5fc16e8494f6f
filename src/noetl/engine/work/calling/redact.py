"""Scrubbing: secrets that a worker has seen must not leave it in results, errors or output.

A redactor belongs to one command.  It is told every credential that was opened for it and then looks for their values
in everything the worker reports, in the forms in which tools and libraries like to print them: plain, as JSON or
Python text, URL-quoted, hex, and base64, also of a longer text around the value such as `user:password`.

Looking is a plain search for each form, which needs nothing prepared; a pattern is compiled only after a hit."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

from noetl.core.errors import SECRET_IN_BODY, Failure, ToolFailed
from noetl.core.secret import HIDDEN, Secret
from noetl.ports.secrets import Credential

SECRET_CHARS_MIN = 6
"""Shorter values would hit ordinary words and numbers; they protect nothing anyway."""
LINE_CHARS_MIN = 20
"""From this length on, a line of a secret with several lines is looked for by itself."""

# Fields that say where and as whom, never by which right.  Everything else in a credential is taken for a secret.
PUBLIC_FIELDS = frozenset(
    (
        *("type", "service", "host", "hostname", "db_host", "pg_host", "port", "db_port", "user", "username"),
        *("db_user", "database", "dbname", "db_name", "sslmode", "schema", "role", "region", "endpoint", "url"),
        *("header_name", "nats_url", "servers", "nats_user", "account", "warehouse", "sf_account", "sf_user"),
        *("sf_warehouse", "sf_database", "sf_schema", "sf_role", "project_id", "client_email", "auth_uri"),
        *("token_uri", "auth_provider_x509_cert_url", "client_x509_cert_url", "universe_domain", "domain"),
        *("audience", "scope", "scopes", "token_type", "grant_type", "method", "token_field", "ttl_field"),
        *("token_url", "token_endpoint"),
    )
)
# Secrets inside addresses and connection strings: userinfo, keyword or query parameter.
_USERINFO = re.compile(r"://[^/\s:@]*:([^/\s]+)@|\b(?:nats|tls)://([^/\s:@]+)@")
_PARAMETER = re.compile(
    r"(?i)(?:password|passwd|pwd|token|secret|api_?key|access_?key|signature|sig)\s*=\s*(?:'([^']+)'|([^&;\s']+))"
)
# What clients leave unquoted beside letters, digits and `-._~`: nothing, the slash, or what browsers leave.
_UNQUOTED = ("", "/", "!*'()")
_BASE64_CHARACTER = "[A-Za-z0-9+/_-]"


class Redactor:
    """Told secrets, then asked to scrub.  Values that hold none come back as the same object."""

    def __init__(self) -> None:
        self._last: Secret[Mapping[str, object]] | None = None
        self._secrets: set[str] = set()
        self._needles: tuple[str, ...] = ()
        self._shortest = 0
        self._pattern: re.Pattern[str] | None = None

    @property
    def has_learnt(self) -> bool:
        return bool(self._needles)

    def learn(self, credential: Credential) -> None:
        """Remember what must not be seen of a credential."""
        if credential.data is not self._last:  # the rows of a loop bring the same one thousands of times
            self.learn_values(secrets_in(credential.data.reveal()))
            self._last = credential.data

    def learn_values(self, values: Iterable[str]) -> None:
        """Remember values that are secret as a whole, such as a token that was fetched."""
        new = {value for value in values if len(value) >= SECRET_CHARS_MIN} - self._secrets
        if new:
            self._secrets |= new
            found = {form for secret in new for form in (*_texts(secret), *_base64_cores(secret))}
            self._needles = tuple(sorted(found.union(self._needles)))
            self._shortest = min(map(len, self._needles))
            self._pattern = None

    async def guarded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks of a stream that holds no secret.  One that does is refused as a whole: what goes by in pieces
        cannot be scrubbed, and what was stored cannot be taken back."""
        needles = [needle.encode("utf-8", "surrogatepass") for needle in self._needles]
        kept = max(map(len, needles), default=1) - 1
        tail = b""
        async for chunk in chunks:
            if needles:
                seen = tail + chunk
                if any(needle in seen for needle in needles):
                    message = "the answer holds a credential and is too large to be scrubbed: it was not stored"
                    raise ToolFailed(Failure(kind="storage_access", code=SECRET_IN_BODY, message=message))
                tail = seen[-kept:] if kept else b""
            yield chunk

    def released(self, text: str) -> tuple[str, str]:
        """Of a text that grows: what can be let go now, scrubbed, and its end, which may be the beginning of a secret
        and is to be given again in front of what follows."""
        if not self._needles:
            return text, ""
        # The character before a base64 form shares bits with it, so that one which may be such waits too.
        end = len(text) - self._open_chars(text)
        if end and re.match(_BASE64_CHARACTER, text[end - 1]):
            end -= 1
        if any(needle in text for needle in self._needles):
            for match in self._replacing().finditer(text):
                # What touches the end may go on; what goes on over the cut must not be cut.
                if match.end() > end or match.end() == len(text):
                    end = min(end, match.start())
                    break
        return self._text(text[:end]), text[end:]

    def _open_chars(self, text: str) -> int:
        """How long the longest end of the text is with which a secret begins."""
        longest = 0
        for needle in self._needles:
            place = max(0, len(text) - len(needle) + 1)
            while (place := text.find(needle[0], place)) >= 0 and len(text) - place > longest:
                if needle.startswith(text[place:]):
                    longest = len(text) - place
                    break
                place += 1
        return longest

    def finds(self, content: bytes) -> bool:
        """Whether a secret is in these bytes."""
        return any(needle.encode("utf-8", "surrogatepass") in content for needle in self._needles)

    def scrub(self, value: object) -> object:
        """The value with every secret replaced; keys of mappings too."""
        if not self._needles:
            return value
        try:
            return self._scrub(value)
        except RecursionError:
            return HIDDEN  # what cannot be looked through is not let through

    def _scrub(self, value: object) -> object:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            items = [self._scrub(item) for item in value]
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else items
        return value

    def _mapping(self, value: Mapping[object, object]) -> object:
        pairs = [(self._scrub(key), self._scrub(item)) for key, item in value.items()]
        is_same = all(
            new_key is key and new is item for (new_key, new), (key, item) in zip(pairs, value.items(), strict=True)
        )
        return value if is_same else dict(pairs)

    def _text(self, text: str) -> str:
        if len(text) < self._shortest:
            return text
        for needle in self._needles:
            if needle in text:
                return self._replacing().sub(HIDDEN, text)
        return text

    def _replacing(self) -> re.Pattern[str]:
        """Longest first, so that a form which holds another one goes as a whole."""
        if self._pattern is None:
            texts = {re.escape(form) for secret in self._secrets for form in _texts(secret)}
            # The characters beside the core still hold some bits of the secret, and what pads it is of no use.
            cores = {
                f"{_BASE64_CHARACTER}?{re.escape(core)}{_BASE64_CHARACTER}?={{0,2}}"
                for secret in self._secrets
                for core in _base64_cores(secret)
            }
            self._pattern = re.compile("|".join(sorted(texts | cores, key=len, reverse=True)))
        return self._pattern


def secrets_in(data: Mapping[str, object]) -> Iterator[str]:
    """Every text in the fields of a credential that is secret, also inside addresses."""
    open_: list[tuple[str, object]] = list(data.items())
    while open_:
        name, value = open_.pop()
        if isinstance(value, Mapping):
            open_.extend((str(key), item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            open_.extend((name, item) for item in value)
        elif isinstance(value, str):
            if name.lower() not in PUBLIC_FIELDS:
                yield value
            yield from _embedded(value)


def _embedded(value: str) -> Iterator[str]:
    """The passwords within an address or a connection string, as written and decoded."""
    for match in (*_USERINFO.finditer(value), *_PARAMETER.finditer(value)):
        secret = match[1] or match[2]
        yield secret
        yield unquote(secret)


def _texts(secret: str) -> set[str]:
    """The secret as text: plain, escaped, quoted, hex, and line by line when it has several."""
    strict = re.sub("[-._~]", lambda match: f"%{ord(match[0]):X}", quote(secret, safe="", errors="replace"))
    quoted = {strict, quote_plus(secret, errors="replace")}
    quoted |= {quote(secret, safe=safe, errors="replace") for safe in _UNQUOTED}
    lower = {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), one) for one in quoted}
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    hexed = {content.hex() for content in _encoded(secret)}
    # The frame of a key (`-----BEGIN …-----`) is no secret.
    lines = (line.strip() for line in secret.splitlines() if not line.startswith("-----"))
    long = {line for line in lines if len(line) >= LINE_CHARS_MIN}
    return {secret, *quoted, *lower, *escaped, *hexed, *map(str.upper, hexed), *long}


def _base64_cores(secret: str) -> set[str]:
    """The characters that every base64 text containing the secret has in it, for the three ways it can be aligned.

    A character of base64 holds six bits; those at the edges share theirs with what stands before and behind."""
    cores = set()
    for content in _encoded(secret):
        for before in range(3):
            encoded = b64encode(bytes(before) + content).decode("ascii").rstrip("=")
            first = (before * 8 + 5) // 6
            last = (before + len(content)) * 8 // 6
            cores.add(encoded[first:last])
    return cores | {core.replace("+", "-").replace("/", "_") for core in cores}


def _encoded(secret: str) -> set[bytes]:
    """As UTF-8, and as Latin-1 where that is possible: clients differ in what they put into a header."""
    found = {secret.encode("utf-8", "surrogatepass")}
    if max(secret) < "\u0100":
        found.add(secret.encode("latin-1"))
    return found
