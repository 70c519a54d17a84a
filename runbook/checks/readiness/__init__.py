"""What `reach` wants of a node before anything starts there: one question a file, each a pure judgement of facts."""
