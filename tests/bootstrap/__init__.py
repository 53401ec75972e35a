"""Tests of `tollkeeper.bootstrap`."""
