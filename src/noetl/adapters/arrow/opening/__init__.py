"""From a reference to rows: what is open in this process, and how the durable bytes are read."""
