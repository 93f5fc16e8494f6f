"""The pure core: everything that decides.  No I/O, clock, randomness, environment, logging or asyncio."""
