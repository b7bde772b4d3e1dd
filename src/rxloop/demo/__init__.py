"""A model that needs no key, and the weather that it talks about."""
