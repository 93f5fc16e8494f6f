"""The server: the HTTP API over the engine, for people, programs and workers."""
