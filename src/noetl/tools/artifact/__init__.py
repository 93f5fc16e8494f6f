"""`artifact`: stored results by their reference, and files below folders that the installation names."""
