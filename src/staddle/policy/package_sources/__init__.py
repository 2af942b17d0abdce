"""Package sources of this host, as entries of an allow list and as configuration files inside.

sources       indexes, proxies, certificates and credentials; parses URLs (pure)
pip_config, apt_config, npm_config    read the configuration of pip, uv, apt, npm and yarn
allow_list    all sources as entries of an allow list
config_files  the configuration files of the managers in a sandbox
"""
