"""Tests of bootstrap."""
