"""The command line.  It always speaks to one host process; when there is none it becomes the host."""
