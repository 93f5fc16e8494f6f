"""Results as they are kept: the JSON of a large value with an index of its parts, and views that read only what is
looked at."""
