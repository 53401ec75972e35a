"""Calls and watches model servers. Knows no protocol of ours and no money."""
