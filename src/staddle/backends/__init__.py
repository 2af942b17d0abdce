"""How a plan is enforced: one file each, behind the contract in `base`."""
