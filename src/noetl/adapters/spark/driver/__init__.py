"""The worker's side of Spark drivers, which are processes of their own.  Nothing here loads Spark."""
