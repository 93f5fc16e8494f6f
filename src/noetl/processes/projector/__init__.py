"""The projector as a process of its own."""
