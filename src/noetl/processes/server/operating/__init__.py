"""Routes for whoever runs a server."""
