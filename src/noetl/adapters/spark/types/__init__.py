"""Types of Arrow and of Spark: what becomes what, and what comes back.

A column of a type that Spark lacks carries a mark with the type that it had.  Spark hands marks on with columns that it
passes through, so such a column leaves as what it came in, unless its values do not fit any more."""

from noetl.adapters.arrow.stored.text import schema_from_text, schema_text
from noetl.adapters.arrow.stored.types import TypeUnsupported
from noetl.adapters.spark.types.plan import TypePlan, plan_of
from noetl.adapters.spark.types.schemas import arrow_schema_of, storable
from noetl.adapters.spark.types.written import written_schema

__all__ = [
    "TypePlan",
    "TypeUnsupported",
    "arrow_schema_of",
    "plan_of",
    "schema_from_text",
    "schema_text",
    "storable",
    "written_schema",
]
