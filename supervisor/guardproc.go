package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// GuardOptions says how a guard process is started.
type GuardOptions struct {
	KillAfter    time.Duration
	StopSignal   syscall.Signal
	PIDNamespace bool     // needs CAP_SYS_ADMIN
	Orphans      *Orphans // nil: nobody else reaps
}

// guardProcess is the keeper's end of a real guard. Its methods may be called by one
// goroutine; none of them waits for the guard.
type guardProcess struct {
	pid    int
	to     *os.File
	from   *os.File
	events chan Event
	wg     sync.WaitGroup
	reaped chan struct{} // closed when the guard is
	except map[int]bool  // children of the keeper that were there before
	tree   descendants
	mu     sync.Mutex // one reaper at a time: the SIGCHLD loop or Enforce
	sig    chan os.Signal
	torn   bool // a frame went out only in part

	quit     func() // called when it is gone
	clean    bool   // the guard ended by itself, and so with nothing left
	hopeless bool   // Enforce has given up once
}

// StartGuard starts a guard process for one term. The keeper becomes a child subreaper,
// so that it inherits the command if the guard dies. From here on this process must not
// wait for children elsewhere (os/exec).
func StartGuard(o GuardOptions) (Guard, error) {
	done := o.Orphans.guarded()
	g, err := newGuardProcess(o)
	if err != nil {
		done()
		return nil, err
	}
	g.quit = done
	return g, nil
}

func newGuardProcess(o GuardOptions) (*guardProcess, error) {
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe for the guard: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, fmt.Errorf("cannot create a pipe for the guard: %w", err)
	}
	g := &guardProcess{to: inW, from: outR, events: make(chan Event, 16), reaped: make(chan struct{}), except: map[int]bool{}}
	for _, pid := range childrenOf(os.Getpid()) {
		g.except[pid] = true
	}
	g.tree.except = g.except
	g.pid, err = forkGuard(int(inR.Fd()), int(outW.Fd()), o.PIDNamespace)
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		if o.PIDNamespace && errors.Is(err, syscall.EPERM) {
			return nil, fmt.Errorf("cannot make a PID namespace (--pid-namespace needs root or CAP_SYS_ADMIN): %w", err)
		}
		return nil, fmt.Errorf("cannot start the guard: %w", err)
	}
	g.tree.started(g.pid)
	g.wg.Go(g.receive)
	g.sig = make(chan os.Signal, 1)
	signal.Notify(g.sig, unix.SIGCHLD)
	g.wg.Go(func() {
		reapOn(g.sig, false, func() (more bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.reap()
			return g.tree.more
		})
	})
	g.write(jsonFrame(frameSetup, setup{KillAfter: o.KillAfter, StopSignal: o.StopSignal,
		Keeper: os.Getpid(), Pgid: unix.Getpgrp(), NewGroup: o.PIDNamespace}))
	reserveThreads() // while it comes up
	return g, nil
}

// forkGuard re-executes this binary as the guard, which reads from fd in and writes to fd
// out. Both keep their numbers, so that inherited descriptors (socket activation, a
// shell's 3<file) reach the command at theirs.
func forkGuard(in, out int, pidns bool) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, fd := range []int{in, out} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return 0, err
		}
	}
	sys, err := guardAttr(pidns)
	if err != nil {
		return 0, err
	}
	exe, err := ownExecutable()
	if err != nil {
		return 0, err
	}
	return syscall.ForkExec(exe, []string{guardName, strconv.Itoa(in), strconv.Itoa(out)},
		&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: sys})
}

// receive reads events until the guard's end of the pipe is closed.
func (g *guardProcess) receive() {
	defer close(g.events)
	var f frames
	buf := make([]byte, 4096)
	for {
		n, err := g.from.Read(buf)
		if err != nil {
			return
		}
		f.add(buf[:n])
		for {
			kind, payload, ok, err := f.next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			var e Event
			if kind != frameEvent || json.Unmarshal(payload, &e) != nil {
				return
			}
			if e.Kind == Started {
				g.tree.started(e.Pid)
			}
			g.events <- e
		}
	}
}

// write never waits long: a guard that doesn't read is stopped or gone, and the missing
// acknowledgement is what the keeper acts on.
func (g *guardProcess) write(frame []byte) { g.writeWithin(frame, 100*time.Millisecond) }

// writeWithin: after a frame that went only in part, nothing more can be understood.
func (g *guardProcess) writeWithin(frame []byte, limit time.Duration) {
	if g.torn {
		return
	}
	_ = g.to.SetWriteDeadline(time.Now().Add(limit))
	n, err := g.to.Write(frame)
	g.torn = err != nil && n > 0
}

func (g *guardProcess) Events() <-chan Event         { return g.events }
func (g *guardProcess) Deadlines(term, kill Instant) { g.write(deadlinesFrame(term, kill)) }
func (g *guardProcess) Start(c Command)              { g.writeWithin(commandFrame(c), guardPatience) }
func (g *guardProcess) Signal(s syscall.Signal) {
	g.write(appendFrame(nil, frameSignal, []byte{byte(s)}))
}
func (g *guardProcess) Stop(s Stop) { g.write(jsonFrame(frameStop, s)) }
func (g *guardProcess) Kill()       { g.write(appendFrame(nil, frameKill, nil)) }
func (g *guardProcess) ReleaseInfo(info []byte, r *RunResult) {
	g.write(jsonFrame(frameRelease, release{info, r}))
}

// reapOn calls reap after each SIGCHLD, and while there is more, until sig is closed.
func reapOn(sig <-chan os.Signal, more bool, reap func() (more bool)) {
	for {
		open := true
		if more {
			select {
			case _, open = <-sig:
			default:
			}
		} else {
			_, open = <-sig
		}
		if !open {
			return
		}
		more = reap()
	}
}

// reap collects what has ended; the caller holds mu.
func (g *guardProcess) reap() (empty bool) {
	return g.tree.reapPass(func(pid int, status syscall.WaitStatus) {
		if pid == g.pid {
			g.clean = status.Exited() && status.ExitStatus() == 0
			close(g.reaped)
			g.pid = 0 // it may be somebody else's now
		}
	})
}

// Enforce does what the guard should have done: SIGKILL to the guard and to everything
// that descends from us, until nothing is left. It returns whether that was reached
// before giveUp was closed.
func (g *guardProcess) Enforce(giveUp <-chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	tick := time.NewTicker(killPause)
	defer tick.Stop()
	for {
		g.tree.killPass()
		if g.reap() {
			return true
		}
		select {
		case <-giveUp:
			g.hopeless = true
			return false
		case <-tick.C:
		}
	}
}

// Quit ends a guard whose tree is gone, and everything that might be left of it.
func (g *guardProcess) Quit() {
	g.write(appendFrame(nil, frameQuit, nil))
	g.to.Close()
	// It ends by itself at once; if it is stopped or stuck, it is killed.
	timer := time.AfterFunc(500*time.Millisecond, func() { _ = g.from.SetReadDeadline(time.Unix(1, 0)) })
	defer timer.Stop()
	go func() {
		for range g.events {
		}
	}()
	giveUp := make(chan struct{})
	limit := 2 * time.Second
	if g.hopeless { // tried before, until the lease was over
		limit = 0
	}
	stop := time.AfterFunc(limit, func() { close(giveUp) })
	defer stop.Stop()
	g.waitEnd()
	g.mu.Lock()
	clean := g.clean
	g.mu.Unlock()
	// Not after a clean end: what descends from us then isn't the command's (a daemon of a
	// script that executed onlyone at its end).
	if !clean {
		g.Enforce(giveUp)
	}
	signal.Stop(g.sig)
	close(g.sig)
	g.from.Close()
	g.wg.Wait()
	if !clean {
		removeCgroups(os.Getpid())
	}
	g.quit()
}

// waitEnd waits up to 500 ms for the guard's end.
func (g *guardProcess) waitEnd() {
	deadline := time.NewTimer(500 * time.Millisecond)
	defer deadline.Stop()
	select {
	case <-g.reaped:
	case <-deadline.C:
	}
}
