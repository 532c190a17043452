//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// A program is one that runs a command on one host at a time.
type program struct {
	name     string
	binaries []string // of options.Binaries
	store    string   // "consul", "etcd", or empty
	agent    bool     // it speaks to an agent on its host
	guard    bool     // a guard stands between it and the command
	ours     bool     // it is onlyone, and held to its promises
	argv     func(l *lab, lock string) []string
	key      func(lock string) string // the lock's key, or the prefix of it
}

// programs are those that can be compared. Each is used as its manual says, with its
// defaults; `consul lock` with what is to its advantage.
func programs() []program {
	return []program{
		ours("onlyone", func(l *lab) string { return consulProxy }),
		{
			name: "consul-lock", binaries: []string{"consul"}, store: storeConsul, agent: true,
			argv: func(l *lab, lock string) []string {
				return []string{l.opt.Binaries["consul"], "lock", "-http-addr=" + consulProxy, "-shell=false", "-child-exit-code", "consul-lock/" + lock}
			},
			key: func(lock string) string { return "consul-lock/" + lock + "/.lock" },
		},
		{
			name: "etcdctl-lock", binaries: []string{"etcd", "etcdctl"}, store: storeEtcd,
			argv: func(l *lab, lock string) []string {
				return []string{l.opt.Binaries["etcdctl"], "--endpoints=" + etcdProxies(), "lock", "--ttl=10", lock}
			},
			key: func(lock string) string { return lock + "/" },
		},
		{
			name: "flock", binaries: []string{"flock"},
			argv: func(l *lab, lock string) []string {
				return []string{l.opt.Binaries["flock"], filepath.Join(l.opt.Dir, "flock-"+lock)}
			},
		},
		// onlyone again, which goes to the servers themselves when its agent doesn't answer.
		ours(withServers, func(l *lab) string {
			addrs := consulProxy
			for _, s := range l.servers {
				addrs += "," + s.addr + ":8500"
			}
			return addrs
		}),
	}
}

const withServers = "onlyone-servers"

// ours is onlyone, with keys and addresses of its own.
func ours(name string, addrs func(l *lab) string) program {
	return program{
		name: name, binaries: []string{"onlyone"}, store: storeConsul, agent: true, guard: true, ours: true,
		argv: func(l *lab, lock string) []string {
			return []string{l.opt.Binaries["onlyone"], "run", "-vv", "--prefix", name, "--http-addr", addrs(l), lock, "--"}
		},
		key: func(lock string) string { return name + "/" + lock + "/.lock" },
	}
}

func programByName(name string) (program, bool) {
	all := programs()
	i := slices.IndexFunc(all, func(p program) bool { return p.name == name })
	if i < 0 {
		return program{}, false
	}
	return all[i], true
}

func programNames() (names []string) {
	for _, p := range programs() {
		names = append(names, p.name)
	}
	return names
}

// destroy ends the holder's session (its lease, with etcd), as an operator would.
func (p program) destroy(ctx context.Context, l *lab, lock string) error {
	if p.store == storeEtcd {
		return l.etcd.revoke(ctx, p.key(lock))
	}
	return l.consul.destroy(ctx, p.key(lock))
}

// deleteKey deletes the lock's key.
func (p program) deleteKey(ctx context.Context, l *lab, lock string) error {
	if p.store == storeEtcd {
		return l.etcd.delete(ctx, p.key(lock))
	}
	return l.consul.delete(ctx, p.key(lock))
}

// contest is one program that contends on all hosts for one lock.
type contest struct {
	program
	lab   *lab
	lock  string
	units map[*host]*unit
}

func (c *contest) start(h *host) {
	beat := []string{c.lab.self, beatMode, c.lab.beats, c.name, h.name}
	argv := slices.Concat(c.argv(c.lab, c.lock), beat)
	c.units[h] = startUnit(func() (*process, error) {
		return c.lab.start(h, fmt.Sprintf("%s.%s", c.name, h.name), nil, argv...)
	})
}

// keeper is the program's own process on a host.
func (c *contest) keeper(h *host) *process {
	if u := c.units[h]; u != nil {
		return u.process()
	}
	return nil
}

// lives are what the program's commands have written.
func (c *contest) lives() ([]life, error) {
	all, err := readLives(c.lab.beats)
	return slices.DeleteFunc(all, func(l life) bool { return l.Program != c.name }), err
}

// runner is the newest command that is alive.
func (c *contest) runner() (newest life, ok bool) {
	all, err := c.lives()
	if err != nil {
		return life{}, false
	}
	for _, l := range all {
		if !l.Helper && alive(l.Pid) && (!ok || l.start() > newest.start()) {
			newest, ok = l, true
		}
	}
	return newest, ok
}
