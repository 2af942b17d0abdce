"""Packages: where this host gets its own from, and how they get into a sandbox.

    sources       what the host's pip, uv, apt, npm and yarn are configured with, read and never changed
    pip_config, apt_config, npm_config    one reader for each family of files
    reaching      the same as entries of an allow list
    inside        what the managers find in a sandbox
    skeleton      the system as the root of a sandbox can change it
    adopting      how dpkg replaces packages that the host has
    installed     which packages a sandbox has got

Nothing here is loaded by who installs nothing.
"""
