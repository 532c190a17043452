//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"
)

// A kind says what a fault may do to the job.
type kind string

const (
	// kindRides: shorter than what is ridden out, it mustn't move the job.
	kindRides kind = "rides"
	// kindMoves: the job has to move.
	kindMoves kind = "moves"
	// kindMay: it may, and that isn't onlyone's choice alone (an election takes its time, and
	// so does TCP after a cut).
	kindMay kind = "may"
	// kindToken: it frees the lock at once, or stops a host whole. No lock can keep two
	// apart then, only a token can. Overlaps are counted apart.
	kindToken kind = "token"
)

// A part is what a fault hits. A program that doesn't have it takes no part in the script.
type part int

const (
	partNetwork part = iota // between a host and the store
	partAgent
	partServers
	partProcess
	partGuard
	partKey
	partConsul // what only Consul has
)

func (p part) of(g program) bool {
	switch p {
	case partNetwork, partServers, partKey:
		return g.store != ""
	case partAgent, partConsul:
		return g.store == storeConsul
	case partGuard:
		return g.guard
	}
	return true
}

// A fault can be played. Its begin returns what ends it; nil: nothing has to.
type fault struct {
	name  string
	what  string // a few words for the table
	hits  part
	kind  kind
	lasts time.Duration // 0: an instant, or as long as begin takes
	begin func(ctx context.Context, t *target) (heal func(context.Context) error, err error)
}

// fromEnd says whether the bound counts from the end of the fault: it hits all hosts, or
// some requests still pass, so that nobody can say when the host was lost.
func (f fault) fromEnd() bool {
	return f.hits == partServers || slices.Contains([]string{"rolling-agents", "flap", "loss", "narrow-much"}, f.name)
}

// A target is whom a fault hits.
type target struct {
	lab      *lab
	host     int // that of the holder, or one by chance
	contests []*contest
	snapshot []byte // of Consul, from before the locks were taken
}

func (t *target) h() *host { return t.lab.hosts[t.host] }

// holder is the host of a contest's command: process faults hit each program where its
// command runs.
func (t *target) holder(c *contest) *host {
	r, ok := c.runner()
	i := slices.IndexFunc(t.lab.hosts, func(h *host) bool { return ok && h.name == r.Host })
	if i < 0 {
		return t.h()
	}
	return t.lab.hosts[i]
}

func servers() string { return network + "11-" + network + "13" }

// faults are all that can be played, in the order of the table.
func faults() []fault {
	const long, short = 60 * time.Second, 10 * time.Second
	const edge = 12500 * time.Millisecond // what is just ridden out at the default settings
	drop := func(in, out string) func(context.Context, *target) (func(context.Context) error, error) {
		return func(ctx context.Context, t *target) (func(context.Context) error, error) {
			h := t.h()
			return h.clear, h.drop(ctx, filter{in, out})
		}
	}
	link := func(m mode, delay time.Duration) func(context.Context, *target) (func(context.Context) error, error) {
		return func(_ context.Context, t *target) (func(context.Context) error, error) {
			set := func(m mode, delay time.Duration) {
				for _, p := range t.lab.hostProxies(t.host) {
					p.set(m, delay)
				}
			}
			set(m, delay)
			return func(context.Context) error { set(modePass, 0); return nil }, nil
		}
	}
	fromServers, toServers := "ip saddr "+servers()+" drop", "ip daddr "+servers()+" drop"
	return []fault{
		{"cut", "the host is cut off for 60 s", partNetwork, kindMoves, long, drop("drop", "drop")},
		{"cut-short", "the host is cut off for 10 s", partNetwork, kindMay, short, drop("drop", "drop")},
		{"cut-edge", "the host is cut off for 12.5 s", partNetwork, kindMay, edge, drop("drop", "drop")},
		{"unplug", "its cable is out for 60 s", partNetwork, kindMoves, long, unplug},
		{"deaf", "it hears nothing for 60 s, but is heard", partNetwork, kindMoves, long, drop("drop", "")},
		{"mute", "it isn't heard for 60 s, but hears", partNetwork, kindMoves, long, drop("", "drop")},
		{"no-servers", "it is cut off from the servers only, 60 s", partNetwork, kindMoves, long, drop(fromServers, toServers)},
		{"no-servers-short", "it is cut off from the servers only, 10 s", partNetwork, kindMay, short, drop(fromServers, toServers)},
		{"flap", "its link is cut for 3 s, ten times in a minute", partNetwork, kindMay, 0, flap},
		{"loss", "30% of its packets are lost each way for 30 s", partNetwork, kindMay, 30 * time.Second,
			drop("numgen random mod 100 < 30 drop", "numgen random mod 100 < 30 drop")},
		{"loss-some", "5% of its packets are lost each way for 30 s", partNetwork, kindRides, 30 * time.Second,
			drop("numgen random mod 100 < 5 drop", "numgen random mod 100 < 5 drop")},
		{"narrow", "its link has 64 kbit/s for 30 s", partNetwork, kindRides, 30 * time.Second, narrow("64kbit")},
		{"narrow-much", "its link has 8 kbit/s for 30 s", partNetwork, kindMay, 30 * time.Second, narrow("8kbit")},

		{"delay", "all between program and store is 400 ms late each way, 30 s", partNetwork, kindRides, 30 * time.Second, link(modePass, 400*time.Millisecond)},
		{"late", "answers are held for 60 s, then they come", partNetwork, kindMoves, long, link(modeHoldAnswers, 0)},
		{"late-short", "answers are held for 10 s, then they come", partNetwork, kindRides, short, link(modeHoldAnswers, 0)},
		{"hang", "nothing passes to its agent or back for 60 s; connections stay open", partNetwork, kindMoves, long, link(modeHang, 0)},
		{"hang-edge", "nothing passes to its agent or back for 12.5 s", partNetwork, kindRides, edge, link(modeHang, 0)},
		{"refuse", "its agent refuses connections for 60 s", partNetwork, kindMoves, long, link(modeRefuse, 0)},
		{"refuse-short", "its agent refuses connections for 10 s", partNetwork, kindRides, short, link(modeRefuse, 0)},

		{"agent-freeze", "its agent is frozen for 60 s", partAgent, kindMoves, long, freezeAgent},
		{"agent-freeze-short", "its agent is frozen for 10 s", partAgent, kindRides, short, freezeAgent},
		{"agent-kill", "its agent is killed, and back after 5 s", partAgent, kindRides, 5 * time.Second, killAgent},
		{"agent-restart", "its agent is stopped by SIGTERM, and back after 2 s", partAgent, kindMay, 2 * time.Second, termAgent},
		{"agent-leave", "its agent leaves (consul leave), and is back after 20 s", partConsul, kindMay, 20 * time.Second, leave},
		{"rolling-agents", "all agents are restarted by SIGTERM, one by one", partAgent, kindMay, 0, rollAgents},

		{"server-kill", "the server that its agent uses is killed, and back after 10 s", partServers, kindMay, short, onItsServer((*process).kill, nil)},
		{"server-freeze", "the server that its agent uses is frozen for 10 s", partServers, kindMay, short, onItsServer(freeze, thaw)},
		{"server-freeze-long", "the server that its agent uses is frozen for 60 s", partServers, kindMay, long, onItsServer(freeze, thaw)},
		{"leader-kill", "the leader is killed, and back after 10 s", partServers, kindMay, short, onLeader((*process).kill, nil)},
		{"leader-freeze", "the leader is frozen for 10 s", partServers, kindMay, short, onLeader(freeze, thaw)},
		{"leader-freeze-long", "the leader is frozen for 40 s", partServers, kindMay, 40 * time.Second, onLeader(freeze, thaw)},
		{"leader-cut", "the leader's host is cut off for 30 s", partServers, kindMay, 30 * time.Second, cutLeader},
		{"servers-freeze", "all servers are frozen for 5 s", partServers, kindRides, 5 * time.Second, onServers(freeze, thaw)},
		{"servers-freeze-long", "all servers are frozen for 60 s", partServers, kindMoves, long, onServers(freeze, thaw)},
		{"servers-kill", "all servers are killed, and back after 2 s", partServers, kindMay, 2 * time.Second, onServers((*process).kill, nil)},
		{"rolling-servers", "all servers are restarted, one by one", partServers, kindMay, 0, rollServers},
		{"disk-full", "the servers' disks are full for 20 s", partServers, kindMay, 20 * time.Second, fillDisks},

		{"keeper-kill", "kill -9 of the program", partProcess, kindMoves, 0, onKeeper(syscall.SIGKILL, 0)},
		{"keeper-freeze", "the program is frozen for 60 s", partProcess, kindMoves, long, onKeeper(syscall.SIGSTOP, syscall.SIGCONT)},
		{"keeper-freeze-short", "the program is frozen for 10 s", partProcess, kindRides, short, onKeeper(syscall.SIGSTOP, syscall.SIGCONT)},
		{"guard-kill", "kill -9 of the guard", partGuard, kindMoves, 0, onGuard(syscall.SIGKILL, 0)},
		{"guard-freeze", "the guard is frozen for 60 s", partGuard, kindMoves, long, onGuard(syscall.SIGSTOP, syscall.SIGCONT)},
		{"guard-freeze-short", "the guard is frozen for 10 s", partGuard, kindRides, short, onGuard(syscall.SIGSTOP, syscall.SIGCONT)},
		{"child-kill", "kill -9 of the command", partProcess, kindMoves, 0, onChild(syscall.SIGKILL, 0)},
		{"child-freeze", "the command is frozen for 20 s", partProcess, kindRides, 20 * time.Second, onChild(syscall.SIGSTOP, syscall.SIGCONT)},
		{"host-dead", "every process of the host is killed, and back after 60 s", partNetwork, kindMoves, long, hostDead},

		{"session-destroyed", "an operator destroys the session (etcd: revokes the lease)", partKey, kindMoves, 0, destroySessions},
		{"key-deleted", "an operator deletes the lock's key", partKey, kindToken, 0, deleteKeys},
		{"snapshot-restored", "an operator restores a snapshot from before", partConsul, kindToken, 0, restoreSnapshot},
		{"host-freeze", "every process of the host is frozen for 60 s", partNetwork, kindToken, long, hostFreeze},
	}
}

// silence is how long a cut may be for TCP to go on in time: it sends again 6.3 s after the
// first try, and then only after 12.6 s.
const silence = 6 * time.Second

// cuts says that packets are lost, all of them.
func (f fault) cuts() bool {
	return slices.Contains([]string{"cut", "cut-short", "cut-edge", "unplug", "deaf", "mute", "no-servers", "no-servers-short"}, f.name)
}

func faultByName(name string) (fault, bool) {
	all := faults()
	i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
	if i < 0 {
		return fault{}, false
	}
	return all[i], true
}

func listFaults(w io.Writer) {
	for _, f := range faults() {
		fmt.Fprintf(w, "%-20s %-6s %s\n", f.name, f.kind, f.what)
	}
}
