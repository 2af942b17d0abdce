"""Packages that are installed in a sandbox. `hostinfo/package_sources.py` finds their sources.

  system_layer  the system as the root of a sandbox can change it, including the host's packages
  installed     the packages that a sandbox has, and downloads that outlive it
  mirror        a server that pip, npm and apt inside install from; it asks the host's indexes
  cache         the files and pages that the mirror has fetched
  index_pages   the files that a page of an index names (pure)
  apt_pages     the files that a signed page of a repository names

Nothing here is loaded unless a package is installed.
"""
