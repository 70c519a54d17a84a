"""Plan (pure) and run: order, deadlines, stop at the first failing stage."""
