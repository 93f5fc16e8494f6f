"""Ownership of shards and worker sessions of all servers, in memory."""
