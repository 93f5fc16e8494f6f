"""Files of rows and columns for readers outside: made batch by batch, never held whole."""
