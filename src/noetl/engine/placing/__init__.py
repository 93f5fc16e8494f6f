"""Which of the connected sessions gets what: free slots, pools, being alone, being near."""
