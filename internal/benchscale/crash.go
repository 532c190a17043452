//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ttl and lease are the defaults of onlyone run.
const (
	ttl   = 10 * time.Second
	lease = 20 * time.Second
)

// crashes: hosts lose their power, with what is on them. Each case has a lock of its own, and
// they run at the same time.
func (l *lab) crashes(ctx context.Context) error {
	const n = 100
	type crash struct {
		what  string
		limit time.Duration
		do    func(context.Context, *contender, []*contender) (next *contender, since time.Time, err error)
	}
	cases := []crash{
		{"30 of 100 that wait, not the head; then the holder releases", time.Second, func(ctx context.Context, holder *contender, all []*contender) (*contender, time.Time, error) {
			for _, i := range rand.Perm(n - 1)[:30] {
				all[i+1].crash()
			}
			since := time.Now()
			return all[0], since, holder.release(ctx, 0)
		}},
		{"the head; then the holder releases", 2 * ttl, func(ctx context.Context, holder *contender, all []*contender) (*contender, time.Time, error) {
			all[0].crash()
			since := time.Now()
			return all[1], since, holder.release(ctx, 0)
		}},
		{"the holder", 2*ttl + lease, func(_ context.Context, holder *contender, all []*contender) (*contender, time.Time, error) {
			since := time.Now()
			holder.crash()
			return all[0], since, nil
		}},
		{"the holder, the head, and 30 others", 2*ttl + lease, func(_ context.Context, holder *contender, all []*contender) (*contender, time.Time, error) {
			since := time.Now()
			holder.crash()
			all[0].crash()
			for _, i := range rand.Perm(n - 2)[:30] {
				all[i+2].crash()
			}
			for _, c := range all[1:] {
				select {
				case <-c.cut:
				default:
					return c, since, nil
				}
			}
			return nil, since, nil
		}},
	}
	var wg sync.WaitGroup
	lines := make([]string, len(cases))
	for i, c := range cases {
		wg.Go(func() {
			lines[i] = fmt.Sprintf("  %-62s", c.what)
			took, err := l.crash(ctx, fmt.Sprintf("crash-%d", i), n, c.do)
			if err != nil {
				lines[i] += "cannot be measured: " + err.Error()
				return
			}
			lines[i] += fmt.Sprintf("the next runs after %s (limit %s)", took.Round(time.Millisecond), c.limit)
		})
	}
	wg.Wait()
	for _, line := range lines {
		say("%s", line)
	}
	return nil
}

func (l *lab) crash(ctx context.Context, name string, n int, do func(context.Context, *contender, []*contender) (*contender, time.Time, error)) (time.Duration, error) {
	f := newField(l, name)
	ctx, cancel := context.WithCancel(ctx)
	defer f.wg.Wait()
	defer cancel()
	holder, err := f.join(ctx)
	if err != nil {
		return 0, err
	}
	<-holder.got
	if holder.term == nil {
		return 0, f.err()
	}
	defer holder.keep()()
	all, err := f.joinAll(ctx, n)
	if err != nil {
		return 0, err
	}
	time.Sleep(ttl) // renewed at different instants
	next, since, err := do(ctx, holder, all)
	if err != nil {
		return 0, err
	}
	select {
	case <-next.got:
		if next.term == nil {
			return 0, f.err()
		}
		return next.at.Sub(since), nil
	case <-time.After(90 * time.Second):
		return 0, fmt.Errorf("nobody runs after 90s")
	}
}

// paused: the onlyone that is next is stopped (SIGSTOP), and the holder ends. The others
// wait until the session of the stopped one has ended.
func (l *lab) paused(ctx context.Context) error {
	file := filepath.Join(l.dir, "paused")
	var all []*exec.Cmd
	defer func() {
		for _, cmd := range all {
			_ = cmd.Process.Signal(syscall.SIGCONT)
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}()
	for i := range 3 {
		script := fmt.Sprintf(`date +%%s%%N >%s-%d; exec sleep 1000`, file, i)
		cmd := exec.CommandContext(ctx, l.onlyone, "run", "paused", "--", "sh", "-c", script)
		cmd.Env = append(cmd.Environ(), "CONSUL_HTTP_ADDR="+l.server.Addr)
		// A group of its own: a stopped process in an orphaned group brings SIGHUP upon all of it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
		if err := until(ctx, 30*time.Second, "it runs or waits", func() bool {
			return i == 0 && exists(file+"-0") || i > 0 && l.keys("onlyone/paused/~queue/") == i
		}); err != nil {
			return err
		}
	}
	time.Sleep(2 * time.Second)
	_ = all[1].Process.Signal(syscall.SIGSTOP)
	begin := time.Now()
	_ = all[0].Process.Signal(syscall.SIGTERM)
	if err := until(ctx, time.Minute, "the third runs", func() bool { return exists(file + "-2") }); err != nil {
		return err
	}
	say("  the head is stopped, the holder ends: the next but one runs after %s (limit %s)", time.Since(begin).Round(time.Millisecond), 2*ttl)
	_ = all[1].Process.Signal(syscall.SIGCONT)
	time.Sleep(3 * time.Second)
	if exists(file + "-1") {
		return fmt.Errorf("the one that was stopped runs, too")
	}
	return nil
}
