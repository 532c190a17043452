//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow is CLOCK_BOOTTIME in ns, as child reads it.
func bootNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

const (
	ms = 1e6 // ns
	mb = 1e6 // bytes
)

// ran is one run of a program, from its fork to its end.
type ran struct {
	begin  int64   // boot clock, ns
	wall   float64 // ms
	cpu    float64 // ms, of all its processes that were waited for
	maxRSS float64 // MB, of its largest process
}

// launch runs argv to its end. watch, if any, is called with its pid while it runs, and
// must return when the channel is closed.
func (l *lab) launch(ctx context.Context, addr string, watch func(pid int, ended <-chan struct{}), argv ...string) (ran, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return ran{}, err
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, l.child, append([]string{"launch"}, argv...)...)
	cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR="+addr)
	cmd.Stderr = l.log
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return ran{}, err
	}
	lines := bufio.NewReader(r)
	var pid int
	var res ran
	first, _ := lines.ReadString('\n')
	if _, err = fmt.Sscan(first, &pid); err == nil && watch != nil {
		ended, returned := make(chan struct{}), make(chan struct{})
		go func() {
			watch(pid, ended)
			close(returned)
		}()
		defer func() { <-returned }()
		defer close(ended)
	}
	last, _ := lines.ReadString('\n')
	if err := cmd.Wait(); err != nil {
		return res, fmt.Errorf("%s: %w", argv[0], err)
	}
	var end, user, system, rss, status int64
	if _, err := fmt.Sscan(last, &res.begin, &end, &user, &system, &rss, &status); err != nil {
		return res, fmt.Errorf("%s: cannot read how it ended: %w", argv[0], err)
	}
	if status != 0 {
		return res, fmt.Errorf("%s ended with wait status %#x", strings.Join(argv, " "), status)
	}
	res.wall = float64(end-res.begin) / ms
	res.cpu = float64(user+system) / ms
	res.maxRSS = float64(rss) * 1024 / mb
	return res, nil
}

// started is a program that runs on.
type started struct {
	cmd   *exec.Cmd
	pid   int
	ended chan struct{}
	end   int64 // boot clock, ns; when ended is closed
}

// start starts argv; what is left of it when ctx ends is killed.
func (l *lab) start(ctx context.Context, addr string, argv ...string) (*started, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR="+addr)
	cmd.Stderr = l.log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &started{cmd: cmd, pid: cmd.Process.Pid, ended: make(chan struct{})}
	l.wg.Go(func() {
		defer close(s.ended)
		_ = cmd.Wait()
		s.end = bootNow()
	})
	return s, nil
}

// stop asks the program to end and waits; after a while it is killed.
func (s *started) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(5 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// size is the memory of some processes together, in MB.
type size struct{ rss, pss float64 }

// sizeOf adds up pid and its descendants, but those that execute the file but.
func sizeOf(pid int, but string) size {
	var sum size
	for _, pid := range treeOf(pid) {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		if exe, err := os.Readlink(dir + "/exe"); err != nil || exe == but {
			continue
		}
		b, err := os.ReadFile(dir + "/smaps_rollup")
		if err != nil {
			continue
		}
		sum.rss += field(b, "Rss:")
		sum.pss += field(b, "Pss:")
	}
	return sum
}

// cpuOf is the processor time of pid and its descendants but those that execute the file but,
// in ms. Threads that have ended don't count.
func cpuOf(pid int, but string) float64 {
	sum := 0.0
	for _, pid := range treeOf(pid) {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		if exe, err := os.Readlink(dir + "/exe"); err != nil || exe == but {
			continue
		}
		tasks, _ := filepath.Glob(dir + "/task/*/schedstat")
		for _, file := range tasks {
			var ns float64
			b, _ := os.ReadFile(file)
			_, _ = fmt.Sscan(string(b), &ns)
			sum += ns / ms
		}
	}
	return sum
}

func treeOf(pid int) []int {
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", tree[i]))
		for _, file := range tasks {
			b, _ := os.ReadFile(file)
			for f := range bytes.FieldsSeq(b) {
				if n, err := strconv.Atoi(string(f)); err == nil {
					tree = append(tree, n)
				}
			}
		}
	}
	return tree
}

// field is a line "NAME  123 kB" of a file of /proc, in MB.
func field(b []byte, name string) float64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == name {
			kb, _ := strconv.ParseFloat(string(f[1]), 64)
			return kb * 1024 / mb
		}
	}
	return 0
}
