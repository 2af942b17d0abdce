"""Packages that are installed in a sandbox. `hostinfo/package_sources.py` finds their sources.

  system_layer  the system as the root of a sandbox can change it, including the host's packages
  installed     the packages that a sandbox has, and downloads that outlive it

Nothing here is loaded unless a package is installed.
"""
