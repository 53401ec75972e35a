"""An organization's administration: policies, keys, projects, costs."""
