"""Rows of tasks into a staging table, and from there into the target by one transaction."""
