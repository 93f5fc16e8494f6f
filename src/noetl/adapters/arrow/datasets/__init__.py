"""Datasets: Parquet files on their way into a store, and back as files or as rows."""
