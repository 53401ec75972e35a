"""Tests of `tollkeeper.setup`."""
