"""Measures a judge with a small set of labelled texts."""
