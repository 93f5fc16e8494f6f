"""Ownership of shards and worker sessions of all servers, on Postgres."""
