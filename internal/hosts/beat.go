//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A command that is guarded writes into a file of its own, whose name says what it is:
//
//	PROGRAM~HOST~TOKEN~ROLE~TERM~PID
//
// and which holds times in ns, each 8 bytes: its orderly end (0: none), then pairs from..to
// during which it was seen alive every 10 ms. A new pair begins when it has missed beats
// for longer than maxGap: it was stopped, or starved. All are on the boot clock of the
// machine, not of the host.
const (
	beatPause = 10 * time.Millisecond
	maxGap    = 250 * time.Millisecond
	// finishUp is how long the command goes on after SIGTERM, as one does that closes its
	// files.
	finishUp = 300 * time.Millisecond
)

// The roles: the command, and the helper process that it starts and forgets.
const (
	roleCommand = "command"
	roleHelper  = "helper"
)

func bootNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // it exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// bootAhead is what our boot clock is ahead of the machine's, from
// /proc/self/timens_offsets: lines "boottime SECONDS NANOSECONDS".
func bootAhead() time.Duration {
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	for line := range strings.Lines(string(b)) {
		var sec, ns int64
		if n, _ := fmt.Sscanf(line, "boottime %d %d", &sec, &ns); n == 2 {
			return time.Duration(sec)*time.Second + time.Duration(ns)
		}
	}
	return 0
}

// beatMain is the guarded command: beat DIR PROGRAM HOST [TERM]. With TERM, the pid of the
// command, it is the helper.
func beatMain(args []string) int {
	born := bootNow()
	if len(args) < 3 {
		return exitUsage
	}
	ahead := bootAhead()
	dir, program, host := args[0], args[1], args[2]
	role, term := roleCommand, os.Getpid()
	if len(args) > 3 {
		role = roleHelper
		term, _ = strconv.Atoi(args[3])
	}
	name := fmt.Sprintf("%s~%s~%s~%s~%d~%d", program, host, token(), role, term, os.Getpid())
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	p := &pulse{file: file}
	p.beat(born - ahead)
	if role == roleCommand {
		if err := startHelper(append(args, strconv.Itoa(os.Getpid()))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitFailed
		}
	}
	var over <-chan time.Time
	tick := time.NewTicker(beatPause)
	for {
		select {
		case <-tick.C:
			p.beat(bootNow() - ahead)
		case <-stop:
			if role == roleHelper {
				p.end(bootNow() - ahead)
				return 128 + int(syscall.SIGTERM)
			}
			over = time.After(finishUp)
		case <-over:
			p.end(bootNow() - ahead)
			return 128 + int(syscall.SIGTERM)
		}
	}
}

// token is the fencing token that the program gave us, or 0.
func token() string {
	for _, name := range []string{"FENCE_TOKEN", "ETCD_LOCK_REV"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return "0"
}

func startHelper(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{beatMode}, args...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start the helper: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

// pulse writes the file.
type pulse struct {
	file  *os.File
	spans int64
	last  time.Duration
}

func (p *pulse) beat(now time.Duration) {
	if p.spans == 0 || now-p.last > maxGap {
		p.write(8+16*p.spans, now, now)
		p.spans++
	} else {
		p.write(16*p.spans, now)
	}
	p.last = now
}

func (p *pulse) end(now time.Duration) {
	p.beat(now)
	p.write(0, now)
}

// write is one system call, so that a kill doesn't leave half of it.
func (p *pulse) write(at int64, times ...time.Duration) {
	var b []byte
	for _, t := range times {
		b = binary.LittleEndian.AppendUint64(b, uint64(t))
	}
	_, _ = p.file.WriteAt(b, at)
}

// A span is a time on the boot clock of the machine.
type span struct{ From, To time.Duration }

// A life is what one process of a guarded command has written.
type life struct {
	Program, Host string
	Token         uint64
	Helper        bool
	Term          int // the pid of the command that this is, or is a helper of
	Pid           int
	Spans         []span        // at least one
	Ended         time.Duration // its orderly end; 0: it runs, or it was killed
}

func (l life) start() time.Duration { return l.Spans[0].From }
func (l life) last() time.Duration  { return l.Spans[len(l.Spans)-1].To }

// readLives reads a folder; a file that is being created is left out.
func readLives(dir string) ([]life, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []life
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		l, ok, err := parseLife(e.Name(), b)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, l)
		}
	}
	return all, nil
}

func parseLife(name string, b []byte) (l life, ok bool, err error) {
	w := strings.Split(name, "~")
	if len(w) != 6 {
		return l, false, fmt.Errorf("cannot understand the file name %q", name)
	}
	l = life{Program: w[0], Host: w[1], Helper: w[3] == roleHelper}
	var err1, err2, err3 error
	l.Token, err1 = strconv.ParseUint(w[2], 10, 64)
	l.Term, err2 = strconv.Atoi(w[4])
	l.Pid, err3 = strconv.Atoi(w[5])
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return l, false, fmt.Errorf("cannot understand the file name %q: %w", name, err)
		}
	}
	if len(b) < 24 {
		return l, false, nil
	}
	at := func(i int) time.Duration { return time.Duration(binary.LittleEndian.Uint64(b[i:])) }
	l.Ended = at(0)
	for i := 8; i+16 <= len(b); i += 16 {
		l.Spans = append(l.Spans, span{at(i), at(i + 8)})
	}
	return l, true, nil
}
