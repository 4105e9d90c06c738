"""What all tests share: hypothesis without a deadline, since the first call of a kernel compiles it."""

from hypothesis import settings

settings.register_profile("fucina", deadline=None, print_blob=True)
settings.load_profile("fucina")
