"""CyberAgent: long-horizon LLM agents whose context is managed on purpose."""

__version__ = "0.1.0"
