"""An inference gateway that keeps exact accounts."""

# The version of the program and of its interface: the package and the OpenAPI document read it.
__version__ = "0.2.0"
