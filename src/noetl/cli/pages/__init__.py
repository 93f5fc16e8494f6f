"""Pages of docs/reference that are made of tables in the code."""
