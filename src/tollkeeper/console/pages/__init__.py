"""Contains the console's pages, one file for each."""
