"""Where a slow AllReduce loses its time: single ranks, pairs inside a node, pairs of nodes in each direction."""
