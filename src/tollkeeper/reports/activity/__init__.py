"""One record for each inference request, and its pages and exports."""
