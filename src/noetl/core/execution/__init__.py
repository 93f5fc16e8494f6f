"""One execution: its state, the fold that rebuilds it, and the router that decides what comes next."""
