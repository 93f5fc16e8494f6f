"""Projections over one database: inside of a server, and as a process of their own."""
