"""Tables in columns: Arrow streams as payloads, and uncompressed copies of them that processes of one node share."""
