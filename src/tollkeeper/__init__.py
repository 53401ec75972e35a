"""An inference gateway that keeps exact accounts."""

# Of the program and of its interface: the package and the OpenAPI document take it from here.
__version__ = "0.2.0"
