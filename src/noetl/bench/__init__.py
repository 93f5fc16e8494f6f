"""Benchmarks: figures beside a limit that a plain driver loop reaches on the same Postgres in the same run."""
