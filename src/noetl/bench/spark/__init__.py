"""Spark steps against plain PySpark: both sides in one run, over the same files."""
