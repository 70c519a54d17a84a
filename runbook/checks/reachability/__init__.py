"""What `ping` asks of names, addresses and paths: one question a module."""
