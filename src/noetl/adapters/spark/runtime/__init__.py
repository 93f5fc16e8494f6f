"""What Spark runs on: Java, the class archive, environment and settings.  Nothing here imports pyspark but the daemon,
the workload and the builder of the archive, so that a JVM can be on its way before pyspark is loaded."""
