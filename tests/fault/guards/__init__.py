"""Guards that are taken away one at a time, to see that some test misses each of them.

    python -m tests.fault.guards        write the table of guards into docs/reference/guards.md

A guard that no test misses is a comment: it can be lost in any change."""
