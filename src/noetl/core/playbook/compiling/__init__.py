"""Model → code, part by part: what the router evaluates, what the worker renders, where arcs can lead."""
