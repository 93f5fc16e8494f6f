"""What tools and user code say while they run: lines, how they are stored, how they are shown."""
