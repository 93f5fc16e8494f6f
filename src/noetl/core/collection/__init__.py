"""Which payloads nobody needs any more: the names in texts, and what may be done about an object that none names."""
