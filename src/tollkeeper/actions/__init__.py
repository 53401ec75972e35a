"""Declares the actions of operators, which the commands and the console share."""
