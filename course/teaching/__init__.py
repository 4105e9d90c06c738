"""For teachers: exercises as nbgrader assignments, and whole folders of submissions graded.

Assignment notebooks begin with `from course.teaching import points`.
"""

from __future__ import annotations

from course.teaching.points import points

__all__ = ["points"]
