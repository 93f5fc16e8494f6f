"""A worker's logs: from what a tool says to chunks that are durable."""
