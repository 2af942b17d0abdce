"""Let dpkg replace packages that the host has: their files are made the sandbox's own first.

dpkg keeps a link to every file that it is about to replace, and the kernel lets only a file's owner
make one (fs.protected_hardlinks); of a symbolic link it keeps a copy with the same owner. Files
of the host belong to nobody inside. dpkg runs a hook before it begins: this one puts a copy in the
place of each such file of the packages that are to be unpacked, as who owns the directory may.
"""

from __future__ import annotations

HOOK = "/usr/lib/sandbox/own-files"
#: Every Debian has this much of Perl.
SCRIPT = rb"""#!/usr/bin/perl
# Files from outside belong to nobody here. Those of packages that dpkg replaces are replaced by copies.
use strict;

my $dpkg = getppid();
for (1 .. 3) {    # a shell may be in between
    last if slurp("/proc/$dpkg/comm") eq "dpkg\n";
    ($dpkg) = slurp("/proc/$dpkg/status") =~ /^PPid:\s+(\d+)/m or exit 0;
}
for my $deb (map { archives($_) } grep { !/^-/ } split /\0/, slurp("/proc/$dpkg/cmdline")) {
    open(my $said, "-|", "dpkg-deb", "-f", $deb, "Package", "Architecture") or next;
    my ($name, $architecture) = map { /^\S+: (\S+)/ } <$said>;
    close($said) or next;
    for my $list ("$name.list", "$name:$architecture.list") {
        own($_) for split /\n/, slurp("/var/lib/dpkg/info/$list");
    }
}

sub archives {
    my ($word) = @_;
    return $word =~ /\.deb$/ && -f $word ? $word : () unless -d $word;
    opendir(my $directory, $word) or return;
    return map { "$word/$_" } grep { /\.deb$/ } readdir($directory);
}

sub own {
    my ($path) = @_;
    my @status = lstat($path) or return;
    return if -o _;
    my $copy = "$path.sandbox-new";
    if (-l _) {
        symlink(readlink($path), $copy) && rename($copy, $path);
        return;
    }
    return unless -f _;
    open(my $from, "<:raw", $path) or return;
    open(my $to, ">:raw", $copy) or return;
    while (read($from, my $piece, 1 << 20)) { print $to $piece or return unlink($copy) }
    close($to) or return unlink($copy);
    chmod($status[2] & 07777, $copy);
    utime($status[8], $status[9], $copy);
    rename($copy, $path) or unlink($copy);
}

sub slurp {
    my ($path) = @_;
    open(my $file, "<:raw", $path) or return "";
    local $/;
    return <$file> // "";
}
"""
FILES = {
    HOOK: SCRIPT,
    "/etc/dpkg/dpkg.cfg.d/sandbox": f"pre-invoke={HOOK}\n".encode(),
}
