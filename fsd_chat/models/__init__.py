"""A pair of models: where it comes from, whether it fits, and caches that can be rolled back."""
