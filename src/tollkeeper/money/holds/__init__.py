"""Admission: the decision, its transaction, and the queue in front of it."""
