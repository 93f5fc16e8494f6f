"""Several servers on one ledger: the owner of a shard decides, anybody records."""
