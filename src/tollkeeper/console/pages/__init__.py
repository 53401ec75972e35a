"""Contains the console's pages, with one module for each page or group of pages."""
