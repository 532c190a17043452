// Package booted tests onlyone on hosts that boot a real systemd: its units, its timers, its
// part as a service, and Debian's cron. "make test-systemd" makes the hosts and runs it; the
// tests are built with the tag booted, since they can't run anywhere else.
//
// A host is a container of systemd-nspawn with its own root file system (an overlay over one
// that all share), hostname, processes and cgroups. All hosts are in one network, which has
// nothing but 127.0.0.1, and share one Consul, which outlives each of them.
package booted
