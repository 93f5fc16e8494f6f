"""`noetl_events`: the ledger as rows, once or as a stream.

`offsets` how far a reader is · `options` · `rows` events in Arrow · `source` what Spark calls."""
