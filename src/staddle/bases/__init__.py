"""Imported bases: root file systems that sandboxes use in place of the host's own system.

  store         the stored bases by name, and the import of an archive, whole or not at all
  image         reads an archive of an image: an OCI layout, or `docker save`
  layer         applies one layer of an image to a directory

`policy.base` decides which parts of a base are visible inside.
"""
