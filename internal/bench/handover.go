//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"syscall"
	"time"
)

// beat is what a child has written, boot clock in ns.
type beat struct{ start, last, end int64 }

func readBeat(file string) beat {
	b, err := os.ReadFile(file)
	if err != nil || len(b) < 32 {
		return beat{}
	}
	word := func(i int) int64 { return int64(binary.NativeEndian.Uint64(b[8*i:])) }
	return beat{word(0), word(1), word(2)}
}

// stopBeat tells a child to end.
func stopBeat(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, 1), 24)
	return err
}

// awaitBeat waits for a child to start, at most most.
func awaitBeat(ctx context.Context, file string, most time.Duration) (beat, error) {
	for until := time.Now().Add(most); ; {
		if b := readBeat(file); b.last != 0 {
			return b, nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return beat{}, err
		}
		if time.Now().After(until) {
			return beat{}, fmt.Errorf("no child was started within %s", most)
		}
	}
}

// pair is a holder and one contender that waits behind it.
type pair struct {
	name                 string
	holder, next         *started
	holderFile, nextFile string
}

func (l *lab) pair(ctx context.Context, run func(string, ...string) []string) (p *pair, err error) {
	name := l.name()
	p = &pair{name: name, holderFile: l.file(name + "-1"), nextFile: l.file(name + "-2")}
	before, err := l.sessions(ctx)
	if err != nil {
		return nil, err
	}
	if p.holder, err = l.start(ctx, l.addr, run(name, l.child, "beat", p.holderFile)...); err != nil {
		return nil, err
	}
	if _, err = awaitBeat(ctx, p.holderFile, 10*time.Second); err != nil {
		return nil, err
	}
	if p.next, err = l.start(ctx, l.addr, run(name, l.child, "beat", p.nextFile)...); err != nil {
		return nil, err
	}
	for until := time.Now().Add(30 * time.Second); ; {
		now, err := l.sessions(ctx)
		if err != nil {
			return nil, err
		}
		// Those of who was killed end meanwhile.
		maps.DeleteFunc(now, func(id string, _ bool) bool { return before[id] })
		if len(now) >= 2 {
			break
		}
		if time.Now().After(until) {
			return nil, errors.New("a contender made no session for 30 s")
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return p, pause(ctx, 250*time.Millisecond) // until its watch stands
}

func (l *lab) sessions(ctx context.Context) (map[string]bool, error) {
	answer, err := l.ask(ctx, "GET", "/v1/session/list", "")
	if err != nil {
		return nil, err
	}
	var list []struct{ ID string }
	err = json.Unmarshal([]byte(answer), &list)
	ids := map[string]bool{}
	for _, s := range list {
		ids[s.ID] = true
	}
	return ids, err
}

// stop stops what is left of a pair.
func (p *pair) stop() {
	for _, file := range []string{p.holderFile, p.nextFile} {
		_ = stopBeat(file)
	}
	for _, s := range []*started{p.holder, p.next} {
		s.stop()
	}
}

// handOver: from the end of the holder's child to the start of the next one's.
func handOver(ctx context.Context, l *lab, n int) ([]row, error) {
	n = (n + 1) / 2
	runs := []func(string, ...string) []string{l.runOnlyone, l.runLockDirect}
	var clean [2]values
	for range n {
		for k, run := range runs {
			gap, err := l.cleanEnd(ctx, run)
			if err != nil {
				return nil, err
			}
			clean[k] = append(clean[k], gap)
		}
	}
	var killed, sinceKill values
	for range n {
		gap, since, err := l.killHolder(ctx, l.runOnlyone)
		if err != nil {
			return nil, err
		}
		killed, sinceKill = append(killed, gap), append(sinceKill, since)
	}
	var told [2]values
	for range n {
		for k, run := range runs {
			since, err := l.terminate(ctx, run)
			if err != nil {
				return nil, err
			}
			told[k] = append(told[k], since)
		}
	}
	var stepped, sinceOrder values
	for range n {
		gap, since, err := l.stepDown(ctx)
		if err != nil {
			return nil, err
		}
		stepped, sinceOrder = append(stepped, gap), append(sinceOrder, since)
	}
	says, err := l.killPeer(ctx)
	if err != nil {
		return nil, err
	}
	return []row{
		{Metric: "hand-over: after a clean end", Unit: "ms", Ours: clean[0], Peer: clean[1]},
		{Metric: "  from SIGTERM to the holder's program to the next child", Unit: "ms", Ours: told[0], Peer: told[1]},
		{Metric: "  after step-down", Unit: "ms", Ours: stepped, PeerSays: "has none"},
		{Metric: "  from onlyone step-down's start to the next child", Unit: "ms", Ours: sinceOrder, PeerSays: "has none"},
		{Metric: "  after kill -9 of the holder's program", Unit: "ms", Ours: killed, PeerSays: says},
		{Metric: "  from that kill to the next child", Unit: "ms", Ours: sinceKill, PeerSays: says, Goal: goal{Below: 500}},
	}, nil
}

func (l *lab) cleanEnd(ctx context.Context, run func(string, ...string) []string) (float64, error) {
	p, err := l.pair(ctx, run)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := stopBeat(p.holderFile); err != nil {
		return 0, err
	}
	next, err := awaitBeat(ctx, p.nextFile, 10*time.Second)
	if err != nil {
		return 0, err
	}
	return float64(next.start-readBeat(p.holderFile).end) / ms, nil
}

func (l *lab) killHolder(ctx context.Context, run func(string, ...string) []string) (gap, sinceKill float64, err error) {
	p, err := l.pair(ctx, run)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	kill := bootNow()
	if err := syscall.Kill(p.holder.pid, syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	next, err := awaitBeat(ctx, p.nextFile, 10*time.Second)
	if err != nil {
		return 0, 0, err
	}
	// The old child died at most a beat (1 ms) after its last one.
	return float64(next.start-readBeat(p.holderFile).last) / ms, float64(next.start-kill) / ms, nil
}

// terminate is how long the next child takes from a SIGTERM to the holder's program.
func (l *lab) terminate(ctx context.Context, run func(string, ...string) []string) (float64, error) {
	p, err := l.pair(ctx, run)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	told := bootNow()
	if err := syscall.Kill(p.holder.pid, syscall.SIGTERM); err != nil {
		return 0, err
	}
	next, err := awaitBeat(ctx, p.nextFile, 30*time.Second)
	return float64(next.start-told) / ms, err
}

// stepDown asks the holder to hand over, and waits for that as an operator would.
func (l *lab) stepDown(ctx context.Context) (gap, sinceOrder float64, err error) {
	p, err := l.pair(ctx, l.runOnlyone)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	// A holder looks for orders at each check; what rings sooner is watched from the first one on.
	if err := pause(ctx, 2500*time.Millisecond); err != nil {
		return 0, 0, err
	}
	r, err := l.launch(ctx, l.addr, nil, l.onlyone, "step-down", "--wait", p.name)
	if err != nil {
		return 0, 0, err
	}
	next, err := awaitBeat(ctx, p.nextFile, 10*time.Second)
	if err != nil {
		return 0, 0, err
	}
	// The old child died at most a beat (1 ms) after its last one.
	return float64(next.start-readBeat(p.holderFile).last) / ms, float64(next.start-r.begin) / ms, nil
}

// killPeer kills one `consul lock` and looks for 5 s what becomes of its child.
func (l *lab) killPeer(ctx context.Context) (string, error) {
	const look = 5 * time.Second
	p, err := l.pair(ctx, l.runLockDirect)
	if err != nil {
		return "", err
	}
	defer p.stop()
	kill := bootNow()
	if err := syscall.Kill(p.holder.pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	if next, err := awaitBeat(ctx, p.nextFile, look); err == nil {
		return fmt.Sprintf("next after %.0f ms", float64(next.start-kill)/ms), nil
	} else if ctx.Err() != nil {
		return "", err
	}
	if readBeat(p.holderFile).last-kill > int64(look)/2 {
		return "child lives on (5 s)", nil
	}
	return "child dead, none within 5 s", nil
}
