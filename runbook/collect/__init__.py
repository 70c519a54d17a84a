"""`runbook collect`: one archive for a colleague or a forum. Texts are gathered from this machine and the nodes,
secrets and names are taken out, and the rest is packed."""
