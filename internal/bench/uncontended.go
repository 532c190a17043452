//go:build linux

package main

import (
	"context"
	"os"
	"time"
)

// contestants are the programs of an uncontended run.
func (p programs) contestants() []func(name string, command ...string) []string {
	return []func(string, ...string) []string{p.runOnlyone, p.runLock, p.runLockDirect, p.runFloor}
}

// uncontended: a lock that nobody else wants and a command that does nothing. Memory is
// sampled in runs of its own, since that takes time, and with a copy of Consul's binary:
// pages shared with the server would flatter its PSS.
func uncontended(ctx context.Context, l *lab, n int) ([]row, error) {
	copied := l.programs
	var err error
	if copied.consul, err = l.copy(l.consul, "uncontended"); err != nil {
		return nil, err
	}
	defer os.Remove(copied.consul)
	var wall, cpu, single, rss, pss [4]values
	names := []string{l.name(), l.name(), l.name(), l.name()} // the same each time, as in daily use
	for i := range n + 1 {
		for k, argv := range l.contestants() {
			r, err := l.launch(ctx, l.addr, nil, argv(names[k], "true")...)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				continue // the binaries come into the page cache
			}
			wall[k], cpu[k], single[k] = append(wall[k], r.wall), append(cpu[k], r.cpu), append(single[k], r.maxRSS)
			var most size
			if _, err := l.launch(ctx, l.addr, peak(&most), copied.contestants()[k](names[k], "true")...); err != nil {
				return nil, err
			}
			rss[k], pss[k] = append(rss[k], most.rss), append(pss[k], most.pss)
		}
	}
	half := goal{Ratio: 0.5}
	return []row{
		{Metric: "uncontended run: wall time", Unit: "ms", Ours: wall[0], Peer: wall[1], Goal: half},
		{Metric: "  the same, beside lock -shell=false", Unit: "ms", Ours: wall[0], Peer: wall[2]},
		{Metric: "  the same, beside a bare program with the same requests", Unit: "ms", Ours: wall[0], Peer: wall[3]},
		{Metric: "  CPU time", Unit: "ms", Ours: cpu[0], Peer: cpu[1]},
		{Metric: "  CPU time, beside that bare program", Unit: "ms", Ours: cpu[0], Peer: cpu[3]},
		{Metric: "  peak memory (PSS sum)", Unit: "MB", Ours: pss[0], Peer: pss[1], Goal: half},
		{Metric: "  peak RSS sum (shared pages count again)", Unit: "MB", Ours: rss[0], Peer: rss[1]},
		{Metric: "  max RSS of its largest process", Unit: "MB", Ours: single[0], Peer: single[1], Goal: half},
		{Metric: "  that, beside lock -shell=false", Unit: "MB", Ours: single[0], Peer: single[2]},
	}, nil
}

// peak keeps the largest size of a tree that is sampled until it ends.
func peak(most *size) func(int, <-chan struct{}) {
	return func(pid int, ended <-chan struct{}) {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			s := sizeOf(pid, "")
			most.rss, most.pss = max(most.rss, s.rss), max(most.pss, s.pss)
			select {
			case <-ended:
				return
			case <-tick.C:
			}
		}
	}
}

// firstRequest: the same at a proxy, for the requests and the time to the first of them.
func firstRequest(ctx context.Context, l *lab, n int) ([]row, error) {
	p, err := l.proxy()
	if err != nil {
		return nil, err
	}
	defer p.close()
	var count, first [2]values
	for range n {
		for k, argv := range l.contestants()[:2] {
			p.reset()
			r, err := l.launch(ctx, p.addr, nil, argv(l.name(), "true")...)
			if err != nil {
				return nil, err
			}
			count[k] = append(count[k], float64(p.requests.Load()))
			first[k] = append(first[k], float64(p.first.Load()-r.begin)/ms)
		}
	}
	return []row{
		{Metric: "  HTTP requests", Ours: count[0], Peer: count[1], Goal: goal{Most: 5}},
		{Metric: "start-up to the first request", Unit: "ms", Ours: first[0], Peer: first[1], Goal: goal{Below: 15}},
	}, nil
}
