"""The machine itself: clock and ids."""
