"""Every balance recomputed from the rows it stands for."""
