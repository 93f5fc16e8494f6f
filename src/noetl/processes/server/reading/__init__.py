"""Answers to readers of results: which format, which bytes, and how they are sent."""
