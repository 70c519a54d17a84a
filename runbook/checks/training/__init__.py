"""What a `launch` stage does: prepare every node, start all at once, watch, end what failed, say why, try again."""
