"""Arrow columns inside Parquet parts: in which of the types that every engine can read they are stored."""
