"""Connections to the databases of users: where a credential leads, and what goes wrong there."""
