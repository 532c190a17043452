//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// What the faults do. Each returns what undoes it; nil: there is nothing to undo. After an
// error, too: the half of it may have been done.

func flap(ctx context.Context, t *target) (func(context.Context) error, error) {
	const half = 3 * time.Second
	for range 10 {
		if err := t.h().drop(ctx, filter{"drop", "drop"}); err != nil {
			return nil, err
		}
		err := sleep(ctx, half)
		if err = errors.Join(err, t.h().clear(ctx)); err != nil {
			return nil, err
		}
		if err := sleep(ctx, half); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func unplug(ctx context.Context, t *target) (func(context.Context) error, error) {
	set := func(ctx context.Context, state string) error {
		return run(ctx, "", "ip", "link", "set", t.h().name, state)
	}
	return func(ctx context.Context) error { return set(ctx, "up") }, set(ctx, "down")
}

func narrow(rate string) func(context.Context, *target) (func(context.Context) error, error) {
	return func(ctx context.Context, t *target) (func(context.Context) error, error) {
		// Both ends of the cable: each limits what leaves it.
		near, far := "tc qdisc %s dev eth0 root", "tc qdisc %s dev "+t.h().name+" root"
		limit := " tbf rate " + rate + " burst 3000 limit 6000"
		words := func(format, verb, rest string) []string {
			return strings.Fields(fmt.Sprintf(format, verb) + rest)
		}
		heal := func(ctx context.Context) error {
			return errors.Join(t.h().run(ctx, "", words(near, "del", "")...), run(ctx, "", words(far, "del", "")...))
		}
		return heal, errors.Join(t.h().run(ctx, "", words(near, "add", limit)...), run(ctx, "", words(far, "add", limit)...))
	}
}

func freeze(p *process) { p.signal(syscall.SIGSTOP) }
func thaw(p *process)   { p.signal(syscall.SIGCONT) }

func freezeAgent(_ context.Context, t *target) (func(context.Context) error, error) {
	p := t.lab.consul.agents[t.host]
	freeze(p)
	return func(context.Context) error { thaw(p); return nil }, nil
}

func (t *target) startAgent(context.Context) error { return t.lab.consul.startAgent(t.host) }

func killAgent(_ context.Context, t *target) (func(context.Context) error, error) {
	t.lab.consul.agents[t.host].kill()
	return t.startAgent, nil
}

// agentPatience is how long an agent may take to leave.
const agentPatience = 20 * time.Second

func termAgent(_ context.Context, t *target) (func(context.Context) error, error) {
	t.lab.consul.agents[t.host].stop(agentPatience)
	return t.startAgent, nil
}

func leave(ctx context.Context, t *target) (func(context.Context) error, error) {
	err := t.h().run(ctx, "", t.lab.opt.Binaries["consul"], "leave", "-http-addr="+consulAgent)
	if err == nil {
		t.lab.consul.agents[t.host].stop(agentPatience)
	}
	return t.startAgent, err
}

func rollAgents(ctx context.Context, t *target) (func(context.Context) error, error) {
	c := t.lab.consul
	for i := range c.agents {
		c.agents[i].stop(agentPatience)
		if err := c.startAgent(i); err != nil {
			return nil, err
		}
		if err := waitUntil(ctx, startLimit, func() error { return c.ready(ctx, i) }); err != nil {
			return nil, err
		}
		if err := sleep(ctx, 2*time.Second); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// onLeader does something to the leader of each store. Without undo it is started again.
func onLeader(do, undo func(*process)) func(context.Context, *target) (func(context.Context) error, error) {
	return func(ctx context.Context, t *target) (func(context.Context) error, error) {
		var heals []func() error
		for _, s := range t.lab.stores() {
			i, err := s.leader(ctx)
			if err != nil {
				return nil, err
			}
			heals = append(heals, onServer(s, i, do, undo))
		}
		return healAll(heals), nil
	}
}

// onItsServer does something to the server that the host's agent uses, and to etcd's server
// on the same host.
func onItsServer(do, undo func(*process)) func(context.Context, *target) (func(context.Context) error, error) {
	return func(ctx context.Context, t *target) (func(context.Context) error, error) {
		i, err := t.itsServer(ctx)
		if err != nil {
			return nil, err
		}
		var heals []func() error
		for _, s := range t.lab.stores() {
			heals = append(heals, onServer(s, i, do, undo))
		}
		return healAll(heals), nil
	}
}

// itsServer finds the server to which the host's agent has a connection for its requests.
func (t *target) itsServer(ctx context.Context) (int, error) {
	if t.lab.consul == nil {
		return 0, nil
	}
	var out []byte
	err := t.h().in(func() (err error) {
		out, err = exec.CommandContext(ctx, "ss", "-Htn", "state", "established", "dport", "=", ":8300").Output()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cannot ask ss: %w", err)
	}
	for i, h := range t.lab.servers {
		if strings.Contains(string(out), h.addr+":8300") {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the agent of %s has no connection to a server: %q", t.h().name, out)
}

func onServers(do, undo func(*process)) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, t *target) (func(context.Context) error, error) {
		var heals []func() error
		for _, s := range t.lab.stores() {
			for i := range numServers {
				heals = append(heals, onServer(s, i, do, undo))
			}
		}
		return healAll(heals), nil
	}
}

func onServer(s store, i int, do, undo func(*process)) func() error {
	p := s.server(i)
	do(p)
	if undo == nil {
		return func() error { return s.startServer(i) }
	}
	return func() error { undo(p); return nil }
}

func healAll(heals []func() error) func(context.Context) error {
	return func(context.Context) error {
		var errs []error
		for _, heal := range heals {
			errs = append(errs, heal())
		}
		return errors.Join(errs...)
	}
}

// cutLeader cuts off the hosts of the leaders: one host, or two if Consul's and etcd's are
// not the same.
func cutLeader(ctx context.Context, t *target) (func(context.Context) error, error) {
	var cut []*host
	heal := func(ctx context.Context) error {
		var errs []error
		for _, h := range cut {
			errs = append(errs, h.clear(ctx))
		}
		return errors.Join(errs...)
	}
	for _, s := range t.lab.stores() {
		i, err := s.leader(ctx)
		if err != nil {
			return heal, err
		}
		if h := t.lab.servers[i]; len(cut) == 0 {
			// Two cut-off hosts would be another fault: so only Consul's, if both are used.
			cut = append(cut, h)
			if err := h.drop(ctx, filter{"drop", "drop"}); err != nil {
				return heal, err
			}
		}
	}
	return heal, nil
}

func rollServers(ctx context.Context, t *target) (func(context.Context) error, error) {
	for i := range numServers {
		for _, s := range t.lab.stores() {
			s.server(i).stop(agentPatience)
			if err := s.startServer(i); err != nil {
				return nil, err
			}
		}
		// As one who does it by hand: the next one when the cluster is whole again.
		if err := t.lab.whole(ctx); err != nil {
			return nil, err
		}
		if err := sleep(ctx, 5*time.Second); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// fillDisks fills what is left. The stores have room inside of their files, so they are also
// made to write more than that, until they refuse.
func fillDisks(ctx context.Context, t *target) (func(context.Context) error, error) {
	var files []string
	heal := func(context.Context) error {
		var errs []error
		for _, file := range files {
			errs = append(errs, os.Remove(file))
		}
		return errors.Join(append(errs, t.lab.revive())...)
	}
	block := make([]byte, 1<<16)
	for _, s := range t.lab.stores() {
		for i := range numServers {
			name := filepath.Join(s.disk(i), "ballast")
			files = append(files, name)
			f, err := os.Create(name)
			for err == nil {
				_, err = f.Write(block)
			}
			f.Close()
			if !errors.Is(err, syscall.ENOSPC) {
				return heal, err
			}
		}
	}
	value := make([]byte, 400<<10) // Consul takes 512 kB at most
	for _, s := range t.lab.stores() {
		refused := errors.New("it wrote all of it")
		for i := 0; i < 100; i++ {
			if err := s.write(ctx, fmt.Sprintf("ballast/%d", i%10), value); err != nil {
				refused = err
				break
			}
		}
		t.lab.say("%s on full disks: %v", s.name(), refused)
	}
	return heal, nil
}

// signals sends a signal to processes now, and another one to the same ones in the end.
func signals(pids []int, now, later syscall.Signal) func(context.Context) error {
	for _, pid := range pids {
		_ = syscall.Kill(pid, now)
	}
	if later == 0 {
		return nil
	}
	return func(context.Context) error {
		for _, pid := range pids {
			_ = syscall.Kill(pid, later)
		}
		return nil
	}
}

func onKeeper(now, later syscall.Signal) func(context.Context, *target) (func(context.Context) error, error) {
	return onEach(now, later, func(t *target, c *contest) (int, error) { return c.keeper(t.holder(c)).pid, nil })
}

func onGuard(now, later syscall.Signal) func(context.Context, *target) (func(context.Context) error, error) {
	return onEach(now, later, func(t *target, c *contest) (int, error) {
		for _, pid := range consultest.Children(c.keeper(t.holder(c)).pid) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(b)) == "leaseguard" {
				return pid, nil
			}
		}
		return 0, fmt.Errorf("%s has no guard", c.name)
	})
}

func onChild(now, later syscall.Signal) func(context.Context, *target) (func(context.Context) error, error) {
	return onEach(now, later, func(t *target, c *contest) (int, error) {
		r, ok := c.runner()
		if !ok {
			return 0, fmt.Errorf("%s runs nothing", c.name)
		}
		return r.Pid, nil
	})
}

// onEach signals one process of each program that has it.
func onEach(now, later syscall.Signal, find func(*target, *contest) (int, error)) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, t *target) (func(context.Context) error, error) {
		var pids []int
		for _, c := range t.contests {
			pid, err := find(t, c)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
		return signals(pids, now, later), nil
	}
}

// hostProcesses are all processes of a host, agent and contenders and what they started.
func (t *target) hostProcesses() (pids []int) {
	if t.lab.consul != nil {
		pids = append(pids, t.lab.consul.agents[t.host].pid)
	}
	for _, c := range t.contests {
		pids = append(pids, tree(c.keeper(t.h()).pid)...)
		lives, _ := c.lives()
		for _, v := range lives { // those that have lost their parents, too
			if v.Host == t.h().name && alive(v.Pid) && !slices.Contains(pids, v.Pid) {
				pids = append(pids, v.Pid)
			}
		}
	}
	return pids
}

func hostFreeze(_ context.Context, t *target) (func(context.Context) error, error) {
	return signals(t.hostProcesses(), syscall.SIGSTOP, syscall.SIGCONT), nil
}

// hostDead cuts the host off and kills all: its contenders come back at once (they can't
// reach anything), its agent and network at the end.
func hostDead(ctx context.Context, t *target) (func(context.Context) error, error) {
	heal := func(ctx context.Context) error {
		err := t.h().clear(ctx)
		if t.lab.consul != nil {
			err = errors.Join(err, t.startAgent(ctx))
		}
		return err
	}
	if err := t.h().drop(ctx, filter{"drop", "drop"}); err != nil {
		return heal, err
	}
	signals(t.hostProcesses(), syscall.SIGKILL, 0)
	if t.lab.consul != nil {
		<-t.lab.consul.agents[t.host].ended
	}
	return heal, nil
}

func destroySessions(ctx context.Context, t *target) (func(context.Context) error, error) {
	var errs []error
	for _, c := range t.contests {
		errs = append(errs, c.destroy(ctx, t.lab, c.lock))
	}
	return nil, errors.Join(errs...)
}

func deleteKeys(ctx context.Context, t *target) (func(context.Context) error, error) {
	var errs []error
	for _, c := range t.contests {
		errs = append(errs, c.deleteKey(ctx, t.lab, c.lock))
	}
	return nil, errors.Join(errs...)
}

func restoreSnapshot(ctx context.Context, t *target) (func(context.Context) error, error) {
	return nil, t.lab.consul.restore(ctx, t.snapshot)
}
