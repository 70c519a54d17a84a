"""Jobs that were launched before, perhaps from another machine: what the nodes know of them is all there is."""
