//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// side is how many pairs of each program wait at the same time for what takes long and costs
// nothing.
const side = 3

// both plays one scene with pairs of onlyone and of `consul lock`, all at once.
func (l *lab) both(ctx context.Context, play func(*pair) (float64, error)) (result [2]values, err error) {
	type played struct {
		k     int
		value float64
		err   error
	}
	results := make(chan played)
	n := 0
	for range side {
		for k, run := range []func(string, ...string) []string{l.runOnlyone, l.runLockDirect} {
			p, err2 := l.pair(ctx, run) // one after the other: they are counted by their sessions
			if err2 != nil {
				err = errors.Join(err, err2)
				continue
			}
			defer p.stop()
			n++
			go func() {
				value, err := play(p)
				results <- played{k, value, err}
			}()
		}
	}
	for range n {
		r := <-results
		err = errors.Join(err, r.err)
		result[r.k] = append(result[r.k], r.value)
	}
	return result, err
}

// deadHost: all processes of the holder's host end in one instant, so nobody releases.
func deadHost(ctx context.Context, l *lab, _ int) ([]row, error) {
	took, err := l.both(ctx, func(p *pair) (float64, error) {
		tree := treeOf(p.holder.pid)
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} { // first, so that no guard sees another's end
			for _, pid := range slices.Backward(tree) {
				if err := syscall.Kill(pid, s); err != nil {
					return 0, err
				}
			}
		}
		died := bootNow()
		next, err := awaitBeat(ctx, p.nextFile, 2*time.Minute)
		return float64(next.start-died) / 1e9, err
	})
	return []row{{Metric: "hand-over: after a dead host", Unit: "s", Ours: took[0], Peer: took[1]}}, err
}

// ends: how the programs end.
func ends(ctx context.Context, l *lab, _ int) ([]row, error) {
	took, err := l.both(ctx, func(p *pair) (float64, error) {
		told := bootNow()
		if err := syscall.Kill(p.next.pid, syscall.SIGTERM); err != nil {
			return 0, err
		}
		select {
		case <-p.next.ended:
			return float64(p.next.end-told) / ms, nil
		case <-time.After(2 * time.Minute):
			return 0, errors.New("a contender didn't end for 2 minutes after SIGTERM")
		}
	})
	if err != nil {
		return nil, err
	}
	command := []string{"sh", "-c", "exit 7"}
	var codes [3]int
	for i, argv := range [][]string{
		l.runOnlyone(l.name(), command...),
		l.runLockDirect(l.name(), command...),
		slices.Insert(l.runLockDirect(l.name(), command...), 2, "-child-exit-code"),
	} {
		s, err := l.start(ctx, l.addr, argv...)
		if err != nil {
			return nil, err
		}
		<-s.ended
		if codes[i] = s.cmd.ProcessState.ExitCode(); codes[i] < 0 {
			return nil, fmt.Errorf("%s: %w", argv[0], &exec.ExitError{ProcessState: s.cmd.ProcessState})
		}
	}
	return []row{
		{Metric: "SIGTERM while waiting: until it has ended", Unit: "ms", Ours: took[0], Peer: took[1]},
		{Metric: "exit code when the command ends with 7", OursSays: fmt.Sprint(codes[0]), PeerSays: fmt.Sprintf("%d; with -child-exit-code %d", codes[1], codes[2])},
	}, nil
}
