"""Fuzzes code that reads bytes from outside: guided by coverage in `make fuzz`, and from seeds in every run."""
