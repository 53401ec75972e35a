"""What people read afterwards: costs, statements, activity, traffic, bills, alerts.

Nothing here changes money; a number comes from the rows that its owner wrote.
"""
