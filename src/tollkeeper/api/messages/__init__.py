"""Implements the Messages face: answers and token counts."""
