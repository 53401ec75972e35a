"""The operators' commands, one module per noun, with the services of the API."""
