"""The inspector: a confined process on the host that decides about each HTTP request of one sandbox."""
