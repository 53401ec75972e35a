"""Tests of the load programme and of the soak test."""
