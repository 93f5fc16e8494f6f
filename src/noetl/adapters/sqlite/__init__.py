"""Lists on the disk of this machine, for work that ends with the process."""
