"""Settings without which Spark would change values or refuse types that it has."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days before 1582 are what they are: the calendar of Arrow, Postgres and Python has no gap there.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
