"""Who else may enter the private server of a home, and how far."""
