"""From logs to causes: signs on lines, rules that make causes of them, and a judgement that names the root. Pure."""
