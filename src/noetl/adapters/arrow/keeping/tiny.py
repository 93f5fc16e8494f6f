"""Tables of a few rows: a thread for each step would cost many times what the step does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.keeping.encoding import Encoding, sound
from noetl.adapters.arrow.keeping.scrubbing import Scrubbing
from noetl.adapters.arrow.rows import rows_of
from noetl.adapters.arrow.soundness import check_batch, check_schema
from noetl.core.codec import canonical_bytes
from noetl.ports.data.tables import EncodedTable, Scrub

_ROWS_MAX = 128
_BYTES_MAX = 16_384


def is_tiny(source: object) -> bool:
    return (
        isinstance(source, pa.Table) and source.num_rows <= _ROWS_MAX and source.get_total_buffer_size() <= _BYTES_MAX
    )


def encoded_now(source: Any, scrub: Scrub | None) -> EncodedTable:
    """The durable bytes of a tiny table, which was measured as JSON as well.  Raises ToolFailed."""
    batches, schema = source.to_batches(), source.schema
    encoding = Encoding(uses_threads=False)
    if scrub is not None:
        sound(check_schema, schema)
        for batch in batches:
            sound(check_batch, batch)  # before anybody looks into it
        scrubbing = Scrubbing(scrub)
        schema = scrubbing.schema(schema)
        batches = [scrubbing.batch(batch) for batch in batches]
    encoding.begin(schema)
    content = b"".join((*encoding.pieces(batches), *encoding.rest()))
    size = len(canonical_bytes([row for batch in batches for row in rows_of(batch)]))
    return EncodedTable(content=content, facts=encoding.facts(), plain_bytes=size)
