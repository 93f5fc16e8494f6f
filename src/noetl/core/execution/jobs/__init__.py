"""Jobs that tasks run in a compute engine: what is recorded of them, and what of it a state keeps."""
