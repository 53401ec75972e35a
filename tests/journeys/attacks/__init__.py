"""Published advisories of gateways and of the libraries below them, replayed against this one."""
