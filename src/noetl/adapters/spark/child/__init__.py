"""A Spark driver: the process that holds the session and runs jobs."""
