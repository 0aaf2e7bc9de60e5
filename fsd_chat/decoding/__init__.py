"""Fuzzy speculative decoding, as the paper has it; needs torch and nothing else of this project.

Importing this package imports no torch: each module does that for itself.
"""
