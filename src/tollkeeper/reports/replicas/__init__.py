"""How each process sees the replicas of the backends."""
