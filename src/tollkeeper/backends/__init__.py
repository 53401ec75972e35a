"""Calls model servers and tracks their health. Does not depend on the protocols towards clients, nor
on prices and accounts."""
