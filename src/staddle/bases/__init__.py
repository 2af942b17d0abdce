"""Imported bases: root file systems that sandboxes have in the place of the host's own system.

    store         where they lie, by name
    image         what an archive of an image says that it holds: an OCI layout, or `docker save`
    layer         one layer of it applied to a directory
    import_image  an archive made into a base, whole or not at all

`policy.base` says what of one is seen inside.
"""
