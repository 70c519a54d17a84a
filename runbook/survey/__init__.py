"""`inventory init`: ask the hosts themselves, then judge what they said (pure) and draft an inventory from it."""
