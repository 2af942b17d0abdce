"""Knowledge of hosts: how paths resolve, and where toolchains, package sources and dangerous names are.

Its modules read the host and change nothing. They know no policy: `policy` decides what is granted.

resolution       resolves declared paths on this host
layouts          layouts of toolchains on disk, as data
toolchains       the toolchains on a PATH, with the directories that they need
protected        protected names: the list, and the walk that finds them
gitconfig        paths in a repository's own configuration
secrets          names and values that look like secrets
package_sources  indexes, proxies, certificates and credentials; parses URLs (pure)
pip_config, apt_config, npm_config    read the configuration of pip, uv, apt, npm and yarn
package_hosts    all package sources as entries of an allow list
package_config   the configuration files of the managers in a sandbox
"""
