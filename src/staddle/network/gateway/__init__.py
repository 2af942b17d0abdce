"""The gateway: a confined process on the host that decides, dials and relays for one sandbox."""
