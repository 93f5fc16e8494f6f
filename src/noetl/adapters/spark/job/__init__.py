"""One job inside of a driver: inputs become views, a program runs, and what it gives becomes datasets and values.

Knows nothing of threads, other jobs or the worker; whoever calls `perform` owns those."""
