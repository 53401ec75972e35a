"""Yes-or-no questions about requests and answers: editing, publishing, judging, calibrating.

What a match does to a call is in `calls`.
"""
