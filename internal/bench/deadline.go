//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

const (
	// ahead is how far a deadline lies in the future when it is armed.
	ahead = 300 * time.Millisecond
	// termAhead leaves the child, which doesn't hear it, time after the SIGTERM.
	termAhead = 250 * time.Millisecond
	// workers arm deadlines at the same time, each with its own guard and child.
	workers = 2
)

// deadline: how late SIGKILL is while each core is kept busy. The guard is the real one,
// the child is deaf; the last sign of life of the child is a lower bound, the guard's
// message that nothing is left an upper one.
func deadline(ctx context.Context, l *lab, n int) ([]row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range runtime.NumCPU() {
		if _, err := l.start(ctx, l.addr, l.child, "burn"); err != nil {
			return nil, err
		}
	}
	rounds := max(n*6/workers, 1) // 120 in all by default
	var rows []row
	limit := goal{Below: 20} // for what this user gets; a second pass shows the rest
	for _, privileged := range []bool{true, false} {
		last, gone, fifo, err := l.lateness(ctx, rounds, privileged)
		if err != nil {
			return nil, err
		}
		how := "without FIFO"
		if fifo {
			how = "SCHED_FIFO"
		}
		if privileged && !fifo {
			continue // not permitted here, so the second pass measures the same
		}
		rows = append(rows,
			row{Metric: "SIGKILL late, all cores busy, " + how + ": p50", Unit: "ms", Ours: last, Quantile: 0.5},
			row{Metric: "  p90", Unit: "ms", Ours: last, Quantile: 0.9},
			row{Metric: "  p99", Unit: "ms", Ours: last, Quantile: 0.99, Goal: limit},
			row{Metric: "  p99 until the keeper knows that all is gone", Unit: "ms", Ours: gone, Quantile: 0.99},
		)
		limit = goal{}
	}
	return rows, nil
}

// lateness runs workers and collects what they print.
func (l *lab) lateness(ctx context.Context, rounds int, privileged bool) (last, gone values, fifo bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, false, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			argv := []string{self, workerArg, l.child, l.file(fmt.Sprintf("deadline-%d", i)), strconv.Itoa(rounds)}
			if !privileged {
				argv = append([]string{l.child, "plain"}, argv...)
			}
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Stderr = l.log
			out, e := cmd.Output()
			mu.Lock()
			defer mu.Unlock()
			if e != nil {
				err = errors.Join(err, fmt.Errorf("deadline worker: %w", e))
				return
			}
			for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
				var a, b float64
				var f bool
				if _, e := fmt.Sscan(sc.Text(), &a, &b, &f); e != nil {
					err = errors.Join(err, e)
					return
				}
				last, gone, fifo = append(last, a), append(gone, b), fifo || f
			}
		})
	}
	wg.Wait()
	return last, gone, fifo, err
}

// workerArg makes this program a deadline worker. It is a process of its own because
// whoever has a guard must not wait for children elsewhere.
const workerArg = "deadline-worker"

func workerMain(args []string) int {
	if len(args) != 3 {
		return 64
	}
	rounds, err := strconv.Atoi(args[2])
	spare := 2 * rounds // a start takes long on a machine that is busy with other things
	for i := 0; i < rounds && err == nil; i++ {
		err = round(args[0], args[1])
		if errors.Is(err, errSlowStart) && spare > 0 {
			err, i, spare = nil, i-1, spare-1
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "deadline worker:", err)
		return 1
	}
	return 0
}

// round arms one deadline and prints how late the child died: by its last beat, by the
// guard's message (both in ms), and whether the guard ran with SCHED_FIFO.
func round(child, file string) error {
	_ = os.Remove(file)
	clock := supervisor.BootClock()
	g, err := supervisor.StartGuard(supervisor.GuardOptions{KillAfter: ahead - termAhead, StopSignal: syscall.SIGTERM})
	if err != nil {
		return err
	}
	defer g.Quit()
	if _, err := event(g, supervisor.GuardReady); err != nil {
		return err
	}
	now := clock.Now()
	killAt := now + ahead
	g.Deadlines(now+termAhead, killAt)
	if _, err := event(g, supervisor.Armed); err != nil {
		return err
	}
	g.Start(supervisor.Command{Path: child, Args: []string{child, "deaf", file}, Env: os.Environ()})
	if _, err := event(g, supervisor.Started); err != nil {
		return err
	}
	if clock.Now() > killAt-ahead/2 {
		return errSlowStart
	}
	time.Sleep(ahead / 8)
	fifo := guardIsRealtime()
	e, err := event(g, supervisor.TreeGone)
	if err != nil && !errors.Is(err, errSilent) { // silence is a result, too
		return err
	}
	gone := clock.Now()
	last := readBeat(file).last
	switch {
	case last == 0:
		return errSlowStart
	case err == nil && !e.Killed:
		return fmt.Errorf("the child did not need SIGKILL: %+v", e)
	}
	_, err = fmt.Println(float64(last-int64(killAt))/ms, float64(gone-killAt)/ms, fifo)
	return err
}

var (
	errSilent    = errors.New("the guard says nothing")
	errSlowStart = errors.New("the child came too late for its deadline")
)

// event waits for one kind of event.
func event(g supervisor.Guard, kind supervisor.EventKind) (supervisor.Event, error) {
	late := time.NewTimer(5 * time.Second)
	defer late.Stop()
	for {
		select {
		case e, ok := <-g.Events():
			switch {
			case !ok:
				return e, errors.New("the guard ended")
			case e.Kind == supervisor.StartFailed && e.Errno == syscall.ETIMEDOUT:
				return e, errSlowStart
			case e.Kind == supervisor.TreeGone && kind == supervisor.Started:
				return e, errSlowStart // killed before it was executed
			case e.Kind == supervisor.StartFailed:
				return e, fmt.Errorf("cannot start the child: %s", e.Detail)
			case e.Kind == kind:
				return e, nil
			}
		case <-late.C:
			return supervisor.Event{}, fmt.Errorf("%w: no event %d", errSilent, kind)
		}
	}
}

// guardIsRealtime looks at the one child that this process has.
func guardIsRealtime() bool {
	for _, pid := range treeOf(os.Getpid())[1:] {
		comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
		if strings.TrimSpace(string(comm)) != "leaseguard" {
			continue
		}
		if a, err := unix.SchedGetAttr(pid, 0); err == nil {
			return a.Policy == unix.SCHED_FIFO
		}
	}
	return false
}
