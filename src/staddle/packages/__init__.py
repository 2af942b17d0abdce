"""Packages that are installed in a sandbox. `policy/package_sources` says where they come from.

    system_layer  the system as the root of a sandbox can change it, with packages that the host has
    downloads     downloaded packages that outlive a sandbox
    installed     which packages a sandbox has got

Nothing here is loaded unless a package is installed.
"""
