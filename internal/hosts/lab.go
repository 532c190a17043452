//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A lab is all that a run needs: hosts, stores and proxies.
type lab struct {
	starter
	opt     options
	out     io.Writer
	servers []*host
	hosts   []*host
	consul  *consulCluster // nil: no program needs it
	etcd    *etcdCluster   // likewise
	// agentProxies stand between a host's programs and its agent, etcdProxies between them
	// and each server of etcd; both by host.
	agentProxies []*proxy
	etcdProxies  [][]*proxy
	beats        string // the folder of the contest at present
	begun        time.Duration
}

// diskSize is the room that a server has. etcd allocates two segments of 64 MB in advance.
const (
	consulDisk = "64m"
	etcdDisk   = "400m"
)

// startLimit is how long a cluster may take to come up, or to come back: seconds, unless
// the machine is busy.
const startLimit = 120 * time.Second

func newLab(ctx context.Context, o options, out io.Writer) (*lab, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(o.Dir, "logs")
	if err := os.Mkdir(logs, 0o700); err != nil {
		return nil, err
	}
	l := &lab{starter: starter{self, logs}, opt: o, out: out, begun: bootNow()}
	if l.servers, l.hosts, err = newHosts(ctx, o.Dir); err != nil {
		return nil, err
	}
	for _, name := range o.Programs {
		switch p, _ := programByName(name); p.store {
		case storeConsul:
			l.consul = &consulCluster{lab: l, servers: make([]*process, numServers), agents: make([]*process, numHosts)}
		case storeEtcd:
			l.etcd = &etcdCluster{lab: l, servers: make([]*process, numServers)}
		}
	}
	if err := l.disks(); err != nil {
		return nil, err
	}
	if err := l.proxies(); err != nil {
		return nil, err
	}
	return l, l.heal(ctx)
}

// say prints a line of progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.out, "hosts: %4.0fs  %s\n", (bootNow() - l.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (l *lab) stores() (all []store) {
	if l.consul != nil {
		all = append(all, l.consul)
	}
	if l.etcd != nil {
		all = append(all, l.etcd)
	}
	return all
}

// disks gives each server a small file system.
func (l *lab) disks() error {
	for _, s := range l.stores() {
		size := consulDisk
		if s.name() == storeEtcd {
			size = etcdDisk
		}
		for i := range numServers {
			if err := os.Mkdir(s.disk(i), 0o700); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", s.disk(i), "tmpfs", 0, "size="+size); err != nil {
				return fmt.Errorf("cannot mount a tmpfs: %w", err)
			}
		}
	}
	return nil
}

func (l *lab) proxies() error {
	for _, h := range l.hosts {
		if l.consul != nil {
			p, err := newProxy(h, consulProxy, consulAgent)
			if err != nil {
				return err
			}
			l.agentProxies = append(l.agentProxies, p)
		}
		if l.etcd != nil {
			var all []*proxy
			for i, s := range l.servers {
				p, err := newProxy(h, etcdProxy(i), s.addr+":2379")
				if err != nil {
					return err
				}
				all = append(all, p)
			}
			l.etcdProxies = append(l.etcdProxies, all)
		}
	}
	return nil
}

// hostProxies are all proxies of a host.
func (l *lab) hostProxies(i int) (all []*proxy) {
	if l.consul != nil {
		all = append(all, l.agentProxies[i])
	}
	if l.etcd != nil {
		all = append(all, l.etcdProxies[i]...)
	}
	return all
}

// heal starts what doesn't run, and returns when all can be used.
func (l *lab) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := l.revive()
		if err != nil {
			return err
		}
		if err = l.ready(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster doesn't come up: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// revive starts what has ended.
func (l *lab) revive() error {
	for _, s := range l.stores() {
		for i := range numServers {
			if p := s.server(i); p == nil || !p.running() {
				if err := s.startServer(i); err != nil {
					return err
				}
			}
		}
	}
	if l.consul == nil {
		return nil
	}
	for i, p := range l.consul.agents {
		if p == nil || !p.running() {
			if err := l.consul.startAgent(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole waits until one server more can fail.
func (l *lab) whole(ctx context.Context) error {
	return waitUntil(ctx, startLimit, func() error {
		if err := l.ready(ctx); err != nil || l.consul == nil {
			return err
		}
		return l.consul.whole(ctx)
	})
}

func (l *lab) ready(ctx context.Context) error {
	for _, s := range l.stores() {
		if _, err := s.leader(ctx); err != nil {
			return err
		}
	}
	if l.consul == nil {
		return nil
	}
	for i := range l.hosts {
		if err := l.consul.ready(ctx, i); err != nil {
			return fmt.Errorf("the agent of %s: %w", l.hosts[i].name, err)
		}
	}
	return nil
}

// close ends all processes, in no order: they are to be gone.
func (l *lab) close() {
	for i := range l.hosts {
		for _, p := range l.hostProxies(i) {
			p.close()
		}
	}
	for _, s := range l.stores() {
		for i := range numServers {
			s.server(i).kill()
		}
	}
	if l.consul != nil {
		for _, a := range l.consul.agents {
			a.kill()
		}
	}
}

// newContests makes a folder for what the commands write, and a contest for each program.
func (l *lab) newContests(lock string, names []string) ([]*contest, error) {
	l.beats = filepath.Join(l.opt.Dir, "beats-"+lock)
	if err := os.Mkdir(l.beats, 0o700); err != nil {
		return nil, err
	}
	var all []*contest
	for _, name := range names {
		p, _ := programByName(name)
		all = append(all, &contest{program: p, lab: l, lock: lock, units: map[*host]*unit{}})
	}
	return all, nil
}

// begin starts the contenders: first those of the first host, which get the locks.
func (l *lab) begin(ctx context.Context, contests []*contest) error {
	for i, h := range l.hosts {
		for _, c := range contests {
			c.start(h)
		}
		if i > 0 {
			continue
		}
		for _, c := range contests {
			err := waitUntil(ctx, 60*time.Second, func() error {
				if r, ok := c.runner(); !ok || r.Host != h.name {
					return fmt.Errorf("%s doesn't start", c.name)
				}
				return c.units[h].failed()
			})
			if err != nil {
				return err
			}
		}
	}
	return sleep(ctx, 4*time.Second) // the others queue up
}

// end stops the contenders of a contest, kills what is left and returns how they have
// ended and how many processes had to be killed.
func (l *lab) end(c *contest) (exits []exit, left int) {
	ended := make(chan []exit)
	for _, u := range c.units {
		go func() { ended <- u.end() }()
	}
	for range c.units {
		exits = append(exits, <-ended...)
	}
	slices.SortFunc(exits, func(a, b exit) int { return int(a.At - b.At) })
	lives, _ := c.lives()
	for _, v := range lives {
		if alive(v.Pid) {
			left++
			_ = syscall.Kill(v.Pid, syscall.SIGKILL)
		}
	}
	return exits, left
}

func waitUntil(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
