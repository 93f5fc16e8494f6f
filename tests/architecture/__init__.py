"""Rules about the source tree itself.  They read files and import nothing of ours."""
