"""Uncompressed tables as plain files that processes of one node map: in shared memory, or on disk where that is full.

A segment is a copy and a hint.  It may vanish at any time, and whoever finds it wrong asks the next tier."""
