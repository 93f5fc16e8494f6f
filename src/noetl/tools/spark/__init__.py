"""`spark`: a task as one job of Spark's, over inputs of every kind and with datasets as outputs."""
