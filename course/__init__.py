"""The course's own machinery: set-up, tests, exercises and their grading, figures.

This file and `__main__.py` are read by whatever Python the learner happens to have: they keep to syntax that old ones
parse, so that an old one answers with a message and not with a SyntaxError.
"""
