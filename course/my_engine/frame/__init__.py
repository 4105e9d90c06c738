"""The text between the pieces of my_engine.py, section by section.

Nothing here is ever imported.  `course.my_engine.assemble` reads these files as text, joins them in the order of
`pieces.FRAME`, and puts a learner's piece in the place of each line `#: chNN.name`.  So they use names that only the
assembled file has.
"""
