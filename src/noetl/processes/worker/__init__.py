"""The worker process: takes commands from a server and reports facts."""
