"""Package sources of this host, as entries of an allow list and as configuration files inside.

sources       indexes, proxies, certificates and credentials; URLs parsed (pure)
reader        read them from the configuration of pip, uv, apt, npm and yarn, which is never changed
pip_config, apt_config, npm_config    one reader for each family of files
allow_list    the same as entries of an allow list
config_files  the configuration files that the managers find in a sandbox
"""
