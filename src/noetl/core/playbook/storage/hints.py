"""What a step or a tool says about the storing of its result."""

from __future__ import annotations

from dataclasses import dataclass

from noetl.core import limits

TIER_SMALL, TIER_LARGE = "kv", "disk"
AUTO = "auto"
EXTRA_NAMES = frozenset(("_ref", "_store", "_size_bytes", "_preview"))
"""Names that only the result has which is stored externally."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """A field of a result that travels with its event.  With an alias it is readable under that name too."""

    path: Path
    alias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """None is what nobody said."""

    store: str = AUTO
    inline_max_bytes: int | None = None
    preview_max_bytes: int | None = None
    select: tuple[Selection, ...] = ()

    def under(self, other: Hints | None) -> Hints:
        """Both together: what the other one says stands above this."""
        if other is None:
            return self
        inline, preview = other.inline_max_bytes, other.preview_max_bytes
        return Hints(
            store=self.store if other.store == AUTO else other.store,
            inline_max_bytes=self.inline_max_bytes if inline is None else inline,
            preview_max_bytes=self.preview_max_bytes if preview is None else preview,
            select=tuple(dict.fromkeys((*self.select, *other.select))),
        )

    def stored(self, size_bytes: int) -> dict[str, object] | None:
        """What is recorded of a result of some size; None for one that counts as inline."""
        most = limits.RESULT_INLINE_BYTES_MAX if self.inline_max_bytes is None else self.inline_max_bytes
        if size_bytes <= most and most > 0:
            return None
        tier = TIER_SMALL if size_bytes < limits.TIER_LARGE_BYTES_MIN else TIER_LARGE
        preview = limits.PREVIEW_BYTES_DEFAULT if self.preview_max_bytes is None else self.preview_max_bytes
        return {"store": tier if self.store == AUTO else self.store, "bytes": size_bytes, "preview": preview}


NO_HINTS = Hints()
