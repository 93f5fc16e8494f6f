"""Projections on Postgres."""
