"""For whoever runs NoETL: what is wrong, and what its processes say."""
