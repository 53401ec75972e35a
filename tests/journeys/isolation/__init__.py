"""Tests that a hostile tenant causes no delays, refusals or charges for a quiet tenant."""
