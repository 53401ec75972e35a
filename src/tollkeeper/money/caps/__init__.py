"""How much an organization, a project or a key may spend a day, a week, a month, in total."""
