"""The bridge to the library of providers, without the library."""
