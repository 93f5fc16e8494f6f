"""What runs in the child processes and in the zygote that forks them: user code, and nothing that it may spoil."""
