"""From a source of rows to durable bytes."""
