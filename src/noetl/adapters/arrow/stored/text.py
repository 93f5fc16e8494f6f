"""Arrow schemas as text, as manifests hold them."""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa

from noetl.core.errors import EnvelopeInvalid


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Raises EnvelopeInvalid."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        raise EnvelopeInvalid(f"not an Arrow schema: {error}") from error
