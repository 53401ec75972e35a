"""Model servers: how they are found, called and watched. Knows no protocol of ours and no money."""
