"""The host: the one process per home that owns the engine and that every command line speaks to."""
