"""Contains the use cases of policies: create, edit and publish them, find those that apply, judge
and try them."""
