"""What is wrong, where, what to do about it, and doing it where that is safe."""
