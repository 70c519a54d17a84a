"""Where logs come from: files, folders, archives, packed and oddly encoded bytes, and folders of runbook's own runs."""
