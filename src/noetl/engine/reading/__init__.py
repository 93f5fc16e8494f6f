"""Results of steps for whoever is outside: a part of them, their rows page by page, never held whole."""
