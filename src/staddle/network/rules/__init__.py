"""What is read and decided about the network: names, addresses, first bytes, nftables. Pure."""
