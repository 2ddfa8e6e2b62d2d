"""Compaction: pure strategies that make a history smaller, and policies that order them."""
