"""What a server does when more comes than it can carry."""
