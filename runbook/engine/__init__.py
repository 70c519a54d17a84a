"""Makes a plan (pure) and runs it: order of stages, deadlines, stop at the first stage that fails."""
