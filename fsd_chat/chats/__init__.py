"""Conversations: what they are, where they are kept, and how they leave."""
