"""fsd-chat: chat with a local model through fuzzy speculative decoding."""

__version__ = "0.1.0"
