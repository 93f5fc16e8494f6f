"""Projections in memory."""
