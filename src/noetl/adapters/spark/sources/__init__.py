"""Data sources for Spark: NoETL's own data, databases and web services of users."""
