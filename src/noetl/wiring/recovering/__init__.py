"""Recovery over one database."""
