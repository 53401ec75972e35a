"""Implements the commands for operators, with one module for each noun. The commands use the same
services as the API."""
