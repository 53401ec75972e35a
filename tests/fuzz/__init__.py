"""Readers of foreign bytes under coverage-guided input: `make fuzz`, and a replay in every run."""
