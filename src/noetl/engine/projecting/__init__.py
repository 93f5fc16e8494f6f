"""Projections: folding the ledger into rows that people and programs read."""
