//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"strconv"
	"strings"
	"syscall"
	"time"
)

// hold is how long each one holds the lock.
const hold = 20 * time.Millisecond

func (l *lab) handOvers(ctx context.Context) error {
	say("  per contender in its life: session, queue, acquire, release; without what waiting costs")
	for _, n := range l.sizes {
		if n <= l.real {
			if err := l.processes(ctx, "onlyone", n, func(name, script string) []string {
				return []string{l.onlyone, "run", name, "--", "sh", "-c", script}
			}); err != nil {
				return err
			}
		}
		if err := l.inProcess(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// inProcess: n contenders of the package hold the lock in turn.
func (l *lab) inProcess(ctx context.Context, n int) error {
	f := newField(l, fmt.Sprintf("package-%d", n))
	before, err := l.raft()
	if err != nil {
		return err
	}
	first, err := f.join(ctx)
	if err != nil {
		return err
	}
	<-first.got
	stop := first.keep()
	_, err = f.joinAll(ctx, n-1)
	stop()
	if err != nil {
		return err
	}
	for range n {
		select {
		case c := <-f.next:
			if err := c.release(ctx, hold); err != nil {
				return err
			}
		case <-time.After(time.Minute):
			return errors.Join(errors.New("nobody holds the lock after a minute"), f.err())
		}
	}
	f.wg.Wait()
	after, err := l.raft()
	if err != nil {
		return err
	}
	say("  %-10s N=%-5d requests %.1f   raft writes %.1f   release to acquired: %v", "package", n,
		float64(f.n.handingOver())/float64(n), float64(after-before-1)/float64(n), f.gaps)
	return f.err()
}

// processes: n processes hold the lock in turn. Their commands write down when they begin
// and end.
func (l *lab) processes(ctx context.Context, what string, n int, argv func(name, script string) []string) error {
	name := fmt.Sprintf("%s-%d", strings.ReplaceAll(what, " ", "-"), n)
	counted := &count{}
	p, err := newProxy(l.server.Addr, counted)
	if err != nil {
		return err
	}
	defer p.close()
	file := filepath.Join(l.dir, name)
	gate := file + "-gate"
	before, err := l.raft()
	if err != nil {
		return err
	}
	sessions := l.sessions()
	script := fmt.Sprintf(`date +"start %%s%%N" >>%[1]s; while ! test -e %[2]s; do sleep 0.1; done; sleep %.3[3]f; date +"end %%s%%N" >>%[1]s`, file, gate, hold.Seconds())
	var all []*exec.Cmd
	defer func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	for i := range n {
		args := argv(name, script)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR="+p.addr)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
		if err := until(ctx, 2*time.Minute, "they have sessions", func() bool {
			return i == 0 && exists(file) || i > 0 && l.sessions()-sessions+8 > i // the first one is alone
		}); err != nil {
			return err
		}
	}
	if err := until(ctx, 2*time.Minute, "all have sessions", func() bool { return l.sessions()-sessions >= n }); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // until all watch
	size := rss(all)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		return err
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	all = nil
	after, err := l.raft()
	if err != nil {
		return err
	}
	gaps, err := readGaps(file)
	if err != nil {
		return err
	}
	say("  %-10s N=%-5d requests %.1f   raft writes %.1f   end to start of the next: %v   (%.0f MB each)", what, n,
		float64(counted.handingOver())/float64(n), float64(after-before-1)/float64(n), gaps, size)
	return nil
}

// rss is the mean resident size of processes in MB.
func rss(all []*exec.Cmd) float64 {
	pages := 0
	for _, cmd := range all {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", cmd.Process.Pid))
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, _ := strconv.Atoi(f[1])
			pages += n
		}
	}
	return float64(pages*os.Getpagesize()) / float64(len(all)) / 1e6
}

func (l *lab) sessions() int {
	list, _, err := l.server.Client().Session().List(nil)
	if err != nil {
		return -1
	}
	return len(list)
}

// readGaps are the times from each end to the next start; none may be negative.
func readGaps(file string) (gaps times, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var last int64
	want := "start"
	for sc := bufio.NewScanner(f); sc.Scan(); {
		what, at, _ := strings.Cut(sc.Text(), " ")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil || what != want || ns < last {
			return nil, fmt.Errorf("two commands lived at one instant, or a line is malformed: %q after %d, want %s", sc.Text(), last, want)
		}
		if what == "start" && last != 0 {
			gaps = append(gaps, time.Duration(ns-last))
		}
		last = ns
		want = map[string]string{"start": "end", "end": "start"}[what]
	}
	return gaps, nil
}

// idle: what those cost who only wait.
func (l *lab) idle(ctx context.Context) error {
	const n, window = 100, 42 * time.Second // six times what a contender repeats
	f := newField(l, "idle")
	ctx, cancel := context.WithCancel(ctx)
	defer f.wg.Wait()
	defer cancel()
	first, err := f.join(ctx)
	if err != nil {
		return err
	}
	<-first.got
	defer first.keep()() // its own renewals are counted, too: there are few
	if _, err := f.joinAll(ctx, n); err != nil {
		return err
	}
	before, cpu, raft := f.n.all.Load(), l.cpu(), uint64(0)
	if raft, err = l.raft(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(window):
	}
	after, err := l.raft()
	if err != nil {
		return err
	}
	sent := f.n.all.Load() - before
	say("  %d contenders for %s: %.3f requests/s each (the holder's renewals included), %d raft writes in all, server %.2f ms of CPU a second",
		n, window, float64(sent)/float64(n)/window.Seconds(), after-raft-1, (l.cpu()-cpu).Seconds()*1000/window.Seconds())
	return nil
}

func (l *lab) consulLock(ctx context.Context) error {
	for _, what := range []struct {
		name string
		argv func(name, script string) []string
	}{
		{"onlyone", func(name, script string) []string { return []string{l.onlyone, "run", name, "--", "sh", "-c", script} }},
		{"consul lock", func(name, script string) []string {
			return []string{l.server.Binary, "lock", "-shell=false", name, "sh", "-c", script}
		}},
	} {
		if err := l.processes(ctx, what.name, 50, what.argv); err != nil {
			return err
		}
	}
	return nil
}
