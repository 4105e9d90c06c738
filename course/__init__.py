"""The course's own machinery: set-up, tests, exercises and their grading, figures.

This file and `__main__.py` are read by whatever Python the learner happens to have: they keep to syntax that old ones
parse, so that an old one answers with a message and not with a SyntaxError.
"""

_FROM_PLATFORM = ("check", "hint", "solution", "progress", "load_ipython_extension")


def __getattr__(name):
    """Look the notebook commands up only when they are asked for: the set-up imports this package without them."""
    if name in _FROM_PLATFORM:
        from importlib import import_module

        return getattr(import_module("course.platform"), name)
    raise AttributeError("module 'course' has no attribute %r" % name)
