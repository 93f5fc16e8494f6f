"""The tool `postgres`: SQL in a database of the user."""
