"""fucina and llama.cpp side by side: see README.md in this folder."""
