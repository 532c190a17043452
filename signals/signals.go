// Package signals receives the signals that onlyone acts on or forwards, tells which of
// them a terminal has already given to the command, and ends a process by a signal.
//
// Limits: a signal that was ignored when the process started (nohup) stays ignored, for
// the command, too. Go's runtime installs handlers for the others, so a command gets
// their default action even if, say, SIGPIPE was ignored above onlyone.
package signals

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Signal is one that came to this process. FromTerminal: this process is in its
// terminal's foreground group, so the kernel has sent it to the command, too.
type Signal struct {
	Signal       syscall.Signal
	FromTerminal bool
}

// Receive delivers signals until stop is called. It takes the stop signals and those that
// are forwarded; never CHLD, URG (Go's own preemption), PIPE, the job control signals (the
// kernel does that) or faults.
func Receive() (c <-chan Signal, stop func()) {
	in := make(chan os.Signal, 64)
	out := make(chan Signal, 64)
	take := func(signals []syscall.Signal) {
		for _, s := range signals {
			if !signal.Ignored(s) {
				signal.Notify(in, s)
			}
		}
	}
	take(received())
	done, taken := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		// Beside what comes next: each takes some 15 µs, together longer than a request.
		take(realtime())
		close(taken)
		for s := range in {
			sig := s.(syscall.Signal)
			select {
			case out <- Signal{sig, fromTerminal(sig)}:
			default: // 64 unhandled signals: the receiver has other troubles
			}
		}
	}()
	return out, func() { <-taken; signal.Stop(in); close(in); <-done }
}

// fromTerminal: the kernel sends these to the whole foreground group.
func fromTerminal(s syscall.Signal) bool {
	switch s {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGWINCH:
		return sharesGroup && Foreground()
	}
	return false
}

// Foreground reports whether this process is in its terminal's foreground group.
func Foreground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
