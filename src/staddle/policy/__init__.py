"""What may be touched: policies, and the plans they become."""
