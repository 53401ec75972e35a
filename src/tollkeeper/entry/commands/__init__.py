"""The commands for operators, one file for each noun.

They call the same services as the API and the console.
"""
