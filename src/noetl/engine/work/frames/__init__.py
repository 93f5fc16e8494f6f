"""Frames in a worker: claiming their rows, running them, saying how they ended."""
