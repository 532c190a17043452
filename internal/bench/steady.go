//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// window is how long requests and processor time are counted: a watch of 15 s and fifteen
// polls of 2 s fit in.
const window = 30 * time.Second

// lockFlags marks a lock key (api.LockFlagValue).
const lockFlags = "3304740253564472344"

// watched is a program whose requests and size are observed.
type watched struct {
	p    *proxy
	prog *started
	file string // its child's, if it has one
	rss  values
	pss  values
	rate values
	cpu  float64 // ms before the window
	load values  // processor time, in s an hour
}

// steady: a waiting contender and a holder, of both programs, all at once and left alone.
// Each is started from a copy of its binary: shared pages would flatter the PSS.
func steady(ctx context.Context, l *lab, _ int) ([]row, error) {
	var all [4]*watched
	for i := range all {
		p, err := l.proxy()
		if err != nil {
			return nil, err
		}
		defer p.close()
		copied := l.programs
		for _, bin := range []*string{&copied.onlyone, &copied.consul} {
			if (i < 2) == (bin == &copied.onlyone) {
				if *bin, err = l.copy(*bin, fmt.Sprintf("%d", i)); err != nil {
					return nil, err
				}
				defer os.Remove(*bin)
			}
		}
		name, run, key := l.name(), copied.runOnlyone, "onlyone/"
		if i >= 2 {
			run, key = copied.runLockDirect, ""
		}
		w := &watched{p: p, file: l.file(name)}
		if i%2 == 0 { // somebody else has it
			session, err := l.occupy(ctx, key+name+"/.lock")
			if err != nil {
				return nil, err
			}
			defer l.free(session)
		}
		if w.prog, err = l.start(ctx, p.addr, run(name, l.child, "beat", w.file)...); err != nil {
			return nil, err
		}
		defer w.prog.stop()
		all[i] = w
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	for i, w := range all {
		if holds := readBeat(w.file).start != 0; holds != (i%2 == 1) {
			return nil, fmt.Errorf("contender %d: holds the lock: %t", i, holds)
		}
		w.p.reset()
		w.cpu = cpuOf(w.prog.pid, l.child)
	}
	for end := time.Now().Add(window); time.Now().Before(end); {
		if err := pause(ctx, window/20); err != nil {
			return nil, err
		}
		for _, w := range all {
			s := sizeOf(w.prog.pid, l.child)
			w.rss, w.pss = append(w.rss, s.rss), append(w.pss, s.pss)
		}
	}
	for _, w := range all {
		w.rate = values{float64(w.p.requests.Load()) / window.Seconds()}
		w.load = values{(cpuOf(w.prog.pid, l.child) - w.cpu) / 1000 * float64(time.Hour/window)}
	}
	waiter, holder, peerWaiter, peerHolder := all[0], all[1], all[2], all[3]
	return []row{
		{Metric: "a waiting contender: RSS", Unit: "MB", Ours: waiter.rss, Peer: peerWaiter.rss, Goal: goal{Below: 15}},
		{Metric: "  PSS", Unit: "MB", Ours: waiter.pss, Peer: peerWaiter.pss, Goal: goal{Below: 15}},
		{Metric: "  requests", Unit: "1/s", Ours: waiter.rate, Peer: peerWaiter.rate, Goal: goal{Below: 1}},
		{Metric: "  CPU for an hour of waiting", Unit: "s", Ours: waiter.load, Peer: peerWaiter.load},
		{Metric: "a holder (with its guard): RSS sum", Unit: "MB", Ours: holder.rss, Peer: peerHolder.rss, Goal: goal{Below: 25}},
		{Metric: "  PSS sum", Unit: "MB", Ours: holder.pss, Peer: peerHolder.pss, Goal: goal{Below: 25}},
		{Metric: "  requests", Unit: "1/s", Ours: holder.rate, Peer: peerHolder.rate, Goal: goal{Most: 1.2}},
		{Metric: "  CPU for an hour of holding", Unit: "s", Ours: holder.load, Peer: peerHolder.load},
	}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// occupy takes a lock by hand, with a session that doesn't expire.
func (l *lab) occupy(ctx context.Context, key string) (session string, err error) {
	answer, err := l.ask(ctx, "PUT", "/v1/session/create", `{"Name": "bench", "LockDelay": "0s"}`)
	if err != nil {
		return "", err
	}
	var s struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &s); err != nil {
		return "", err
	}
	answer, err = l.ask(ctx, "PUT", "/v1/kv/"+key+"?flags="+lockFlags+"&acquire="+s.ID, "")
	if err == nil && strings.TrimSpace(answer) != "true" {
		err = fmt.Errorf("cannot acquire %s: %s", key, answer)
	}
	return s.ID, err
}

func (l *lab) free(session string) {
	_, _ = l.ask(context.Background(), "PUT", "/v1/session/destroy/"+session, "")
}

func (l *lab) copy(bin, suffix string) (string, error) {
	from, err := os.Open(bin)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.OpenFile(l.file(filepath.Base(bin)+"-"+suffix), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return to.Name(), errors.Join(err, to.Close())
}
