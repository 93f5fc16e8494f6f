"""Postgres: the ledger, the queue, small payloads, migrations and the embedded server."""
