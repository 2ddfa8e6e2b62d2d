"""Ways to ask a model, one module a wire format. Source: docs/providers.md."""
