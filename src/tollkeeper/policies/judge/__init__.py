"""Asking the judge: the question, the slots, the tokens."""
