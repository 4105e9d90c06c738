"""The course as a book: a static site of every chapter, exercise and page of docs/, which a browser opens as a file.

`command` runs `python3 -m course book`.  `pages` writes the sources that Sphinx reads (from `exercise` and `contract`),
`settings` says how it is to read them, and `links` looks at what came out.
"""
