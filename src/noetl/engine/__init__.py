"""Use cases over ports: appending, deciding, dispatching, running pipelines.  No driver is imported here."""
