"""`noetl_postgres`: tables and queries of a Postgres as DataFrames, and DataFrames into its tables."""
