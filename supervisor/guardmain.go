package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardName is argv[0] and the command name of the guard, so that "killall onlyone" and
// "pkill -x onlyone" don't hit keeper and guard at once.
const guardName = "leaseguard"

// IsGuard reports whether this process was started as a guard.
func IsGuard(args []string) bool { return len(args) == 3 && args[0] == guardName }

// GuardMain is the guard process: args are guardName, the descriptor that it reads
// frames from and the one that it writes events to. When the keeper has gone, it stops
// the tree and calls release once, with what the keeper gave it for that; the context
// ends at the last instant at which that is worth while. r is what is
// known of the command, see guard.result. It returns the exit code.
func GuardMain(args []string, release func(ctx context.Context, info []byte, r RunResult) error) int {
	in, err1 := strconv.Atoi(args[1])
	out, err2 := strconv.Atoi(args[2])
	if err1 != nil || err2 != nil {
		return 70
	}
	// One thread forks the command (PDEATHSIG follows the thread), waits and kills.
	runtime.LockOSThread()
	l, err := newGuardLoop(in, out, release)
	if err != nil {
		fmt.Fprintln(os.Stderr, "onlyone: guard:", err)
		return 70
	}
	return l.run()
}

// guardLoop drives guard with real descriptors, one poll(2) at a time.
type guardLoop struct {
	guard
	procs   *procTree
	in, out int
	timer   int // timerfd on CLOCK_BOOTTIME; -1 where there is none
	child   int // a pipe: SIGCHLD, or a stop signal
	wake    int // its other end
	frames  frames
	buf     []byte
	stopSig chan struct{} // a stop signal that came to the guard itself
	setup   setup
	info    release // how to do free
	free    func(context.Context, []byte, RunResult) error
	started time.Time
	eof     bool
	quit    bool
}

func newGuardLoop(in, out int, free func(context.Context, []byte, RunResult) error) (*guardLoop, error) {
	for _, fd := range []int{in, out} {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("cannot use descriptor %d: %w", fd, err)
		}
	}
	_ = os.WriteFile("/proc/self/comm", []byte(guardName), 0)
	if os.Getpid() == 1 { // in a PID namespace of its own
		if err := mountProc(); err != nil {
			return nil, err
		}
	}
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	timer, err := newTimerfd()
	if err != nil {
		return nil, err
	}
	wake, err := newPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe: %w", err)
	}
	l := &guardLoop{in: in, out: out, timer: timer, child: wake[0], wake: wake[1], buf: make([]byte, 64<<10),
		stopSig: make(chan struct{}, 1), free: free}
	l.procs = &procTree{}
	l.tree, l.send = l.procs, l.sendEvent
	l.procs.beforeEnd = l.ended
	l.read() // the setup was most likely sent already: the shim comes up beside the rest of us
	l.watchSignals()
	l.sendEvent(Event{Kind: GuardReady})
	reserveThreads() // before a command can be started
	lockMemory()
	return l, nil
}

// watchSignals turns SIGCHLD and stop signals into a readable pipe. What was ignored
// when we started (nohup) stays ignored, for the command, too; signal.Ignore is never used,
// since it would be inherited.
func (l *guardLoop) watchSignals() {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGCHLD, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	shared := os.Getpid() == 1 // in a PID namespace we are in the keeper's process group
	go func() {                // lives as long as the process
		for s := range c {
			switch {
			case s == unix.SIGINT && shared: // a terminal has sent it to the keeper and the command, too
				continue
			case s == unix.SIGTERM, s == unix.SIGINT:
				select {
				case l.stopSig <- struct{}{}:
				default:
				}
			case s != unix.SIGCHLD:
				continue
			}
			_, _ = unix.Write(l.wake, []byte{0}) // a full one is readable, too
		}
	}()
}

// killPause is the longest time between two passes of a kill that isn't finished. The
// death of a direct child wakes the guard at once; this is for what makes no such noise.
const killPause = 10 * time.Millisecond

func (l *guardLoop) run() int {
	for !l.done() {
		fds := []unix.PollFd{{Fd: int32(l.timer), Events: unix.POLLIN}, {Fd: int32(l.child), Events: unix.POLLIN}}
		if !l.eof {
			fds = append(fds, unix.PollFd{Fd: int32(l.in), Events: unix.POLLIN})
		}
		fds = append(fds, l.procs.waitsFor()...)
		wait := pollLimit(l.next())
		switch {
		case l.procs.more:
			wait = 0
		case l.phase == guardKilling:
			wait = l.procs.pause()
		case l.phase == guardStopping && l.guard.ended && (wait < 0 || wait > 100):
			wait = 100 // ms: a cgroup can say that it is populated for a moment longer than it is, and nothing tells of the change
		}
		_ = setTimerfd(l.timer, l.next())
		if l.phase == guardRunning || l.phase == guardStopping {
			l.procs.realtime(true)
		}
		if _, err := unix.Poll(fds, wait); err != nil && err != unix.EINTR {
			return 70
		}
		// The clock first: after a suspend nothing else may be believed or done before.
		l.tick(bootNow())
		var drain [64]byte
		_, _ = unix.Read(l.timer, drain[:])
		_, _ = unix.Read(l.child, drain[:])
		l.hear()
		if !l.eof {
			l.read()
		}
		select {
		case <-l.stopSig:
			l.sendEvent(Event{Kind: StopRequested})
		default:
		}
		l.tick(bootNow())
		if l.phase == guardGone { // now, while the keeper releases
			l.procs.close()
		}
	}
	l.procs.close()
	if l.quit || !l.eof {
		return 0
	}
	return l.releaseTerm()
}

// done: the tree is gone (or never was) and the keeper needs nothing more, or the time is up.
func (l *guardLoop) done() bool {
	if l.phase == guardIdle || l.phase == guardGone {
		return l.quit || l.eof
	}
	// Nobody waits for us, and what is left can't be killed: don't outlive the lease.
	return l.eof && l.phase == guardKilling && bootNow() >= l.kill+margin
}

// releaseTerm gives the lock back in the place of a keeper that has gone.
func (l *guardLoop) releaseTerm() int {
	if l.phase != guardIdle && l.phase != guardGone {
		fmt.Fprintf(os.Stderr, "onlyone: cannot kill %v; the lock isn't released\n", l.procs.Names())
		return 80
	}
	if l.info.Info == nil || l.free == nil {
		return 0
	}
	limit := 2 * time.Second
	if l.kill > 0 {
		limit = min(limit, l.kill+margin-bootNow())
	}
	if limit <= 0 {
		return 0 // the session ends by itself
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := l.free(ctx, l.info.Info, l.result(l.started, time.Now(), l.info.Result)); err != nil {
		fmt.Fprintf(os.Stderr, "onlyone: onlyone was killed; its command is stopped, but cannot release the lock (it is free when its session ends): %v\n", err)
	}
	return 0
}

func (l *guardLoop) sendEvent(e Event) {
	// The pipe holds thousands of events; a keeper that reads none of them is stopped or
	// gone, and then only the deadlines count.
	_, _ = unix.Write(l.out, jsonFrame(frameEvent, e))
}

// read takes all frames that the keeper has sent.
func (l *guardLoop) read() {
	for {
		n, err := unix.Read(l.in, l.buf)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			break
		}
		if n <= 0 || err != nil {
			l.eof = true
			break
		}
		l.frames.add(l.buf[:n])
	}
	for {
		kind, payload, ok, err := l.frames.next()
		if err != nil {
			l.eof = true
		}
		if err != nil || !ok {
			break
		}
		if err := l.handle(kind, payload); err != nil {
			l.eof = true
			break
		}
	}
	if l.eof && !l.quit {
		l.keeperGone(bootNow())
	}
}

func (l *guardLoop) handle(kind frameKind, payload []byte) error {
	now := bootNow()
	l.tick(now)
	switch kind {
	case frameSetup:
		if err := json.Unmarshal(payload, &l.setup); err != nil {
			return err
		}
		l.killAfter, l.stopSignal = l.setup.KillAfter, l.setup.StopSignal
		l.procs.keeper, l.procs.pgid, l.procs.sameGroup = l.setup.Keeper, l.setup.Pgid, l.setup.NewGroup
		_ = l.procs.prepare() // start tries again, and has somebody to tell
	case frameDeadlines:
		term, kill, err := parseDeadlines(payload)
		if err != nil {
			return err
		}
		l.deadlines(term, kill)
	case frameStart:
		c, err := parseCommand(payload)
		if err != nil {
			return err
		}
		l.started = time.Now()
		l.start(now, c)
	case frameSignal:
		if len(payload) != 1 {
			return errFrame
		}
		l.signal(syscall.Signal(payload[0]))
	case frameStop:
		var s Stop
		if err := json.Unmarshal(payload, &s); err != nil {
			return err
		}
		l.stop(s)
	case frameKill:
		l.stop(Stop{KillAt: now})
	case frameRelease:
		l.info = release{}
		if err := json.Unmarshal(payload, &l.info); err != nil {
			return err
		}
	case frameQuit:
		l.quit = true
	default:
		return errFrame
	}
	return nil
}

// hear takes in what the exec shim says.
func (l *guardLoop) hear() {
	word, errno := l.procs.hear()
	switch {
	case word == wordNone:
	case word == wordSilent && l.phase == guardIdle && l.procs.launch.diedAtBirth():
		_ = l.procs.again() // start tries again
	case word == wordSilent && l.phase == guardIdle:
		l.procs.forget() // start forks another one
	case word == wordSilent: // how it ended says what is to be done: ended
	case l.phase == guardIdle: // it has had no order
	case word == wordFailed:
		l.startFailed(errno, errno.Error()) // the shim ends now; TreeGone follows
	default:
		l.sendEvent(Event{Kind: Started, Pid: l.procs.pid})
	}
}

// ended: the command, or the shim that was to become it, has ended so. Killed at birth it is
// forked anew, unless the command is to be stopped by now. Every other signal was meant for the
// command. A shim that has ended by itself couldn't have what Go's runtime needs, such as a thread.
func (l *guardLoop) ended(status syscall.WaitStatus) {
	l.hear()
	switch launch := l.procs.launch; {
	case launch == nil:
	case !status.Signaled():
		l.procs.forget()
		l.startFailed(unix.EAGAIN, fmt.Sprintf("the process that was to become it ended with %d: too many processes, or too little memory?", status.ExitStatus()))
	case !launch.diedAtBirth() || l.phase != guardRunning || status.Signal() != unix.SIGKILL:
		l.procs.forget()
	default:
		if err := l.procs.again(); err != nil {
			errno, _ := err.(syscall.Errno)
			l.startFailed(errno, err.Error())
		}
	}
}

// startFailed: the command never ran. TreeGone follows.
func (l *guardLoop) startFailed(errno syscall.Errno, detail string) {
	l.records = RecordHook
	l.sendEvent(Event{Kind: StartFailed, Errno: errno, Detail: detail})
}

// newPipe makes a pipe whose ends are neither waited for nor inherited. The guard has one
// thread that forks, the one that calls this: so nothing can be forked between the calls.
func newPipe() (p [2]int, err error) {
	if err := unix.Pipe(p[:]); err != nil {
		return p, err
	}
	for _, fd := range p {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return p, err
		}
	}
	return p, nil
}

// procTree is the tree of real processes.
type procTree struct {
	descendants
	cgroup    *cgroup // nil without one
	keeper    int     // its pid
	pgid      int
	sameGroup bool
	launch    *launch // nil when the command runs
	command   []byte  // the frame of the command that was started
	pid       int     // of the command; 0 before and after its life
	// beforeEnd: the command has ended. What its shim had to say comes first.
	beforeEnd func(syscall.WaitStatus)
	passes    int

	writing    atomic.Bool // cgroup.kill is being written
	isRealtime bool
	nice       int // of the thread when it isn't a real-time one
}

// Start gives the command to the shim that was forked ahead, or to a new one.
func (t *procTree) Start(c Command) (int, error) {
	t.command = commandFrame(c)
	switch word, _ := t.hear(); {
	case word == wordSilent && t.again() == nil:
		return t.pid, nil
	case word != wordNone:
		t.forget()
	}
	if t.launch == nil {
		if err := t.prepare(); err != nil {
			t.close()
			return 0, err
		}
	}
	t.give()
	return t.pid, nil
}

// waitsFor is what a launch waits for.
func (t *procTree) waitsFor() []unix.PollFd {
	if t.launch == nil {
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(t.launch.words), Events: unix.POLLIN}}
	switch {
	case t.launch.silent:
		return nil // SIGCHLD follows
	case len(t.launch.pending) > 0:
		fds = append(fds, unix.PollFd{Fd: int32(t.launch.order), Events: unix.POLLOUT})
	}
	return fds
}

func (t *procTree) Signal(sig syscall.Signal) {
	if t.pid > 0 { // not reaped yet, so the pid is still its own
		_ = unix.Kill(t.pid, sig)
	}
}

func (t *procTree) Continue()       { t.Signal(unix.SIGCONT) }
func (t *procTree) TermAll()        { t.realtime(false); t.termAll(t.pid) }
func (t *procTree) Names() []string { t.realtime(false); return t.names() }

// Kill does at once what needs no look at /proc, and the rest at ordinary priority.
func (t *procTree) Kill() {
	t.passes++
	if t.pid > 0 {
		_ = unix.Kill(t.pid, unix.SIGKILL)
	}
	// Beside us: the write waits for cgroup_mutex, of which the kernel has one, and a task
	// that was preempted with it anywhere on the host would hold up our kill (3.8 s seen).
	if c := t.cgroup; c != nil && t.passes%16 == 1 && t.writing.CompareAndSwap(false, true) {
		go func() {
			c.kill()
			t.writing.Store(false)
		}()
	}
	t.realtime(false)
	t.killPass()
}

func (t *procTree) Reap() (*syscall.WaitStatus, bool) {
	t.realtime(false)
	var status *syscall.WaitStatus
	empty := t.reapPass(func(pid int, s syscall.WaitStatus) {
		if pid == t.pid {
			t.beforeEnd(s)
		}
		if pid == t.pid { // and not one that was killed at birth
			status, t.pid = &s, 0
		}
	})
	if empty && t.cgroup != nil && t.cgroup.populated() {
		empty = false // moved into our cgroup from outside: not ours, but in the way
	}
	return status, empty
}

// pause is how long to wait for the next pass, in ms for poll(2): what can't be killed
// (uninterruptible, or not ours to kill) is asked less and less often.
func (t *procTree) pause() int {
	if t.passes > 200 {
		return 100
	}
	return int(killPause / time.Millisecond)
}

// close ends a shim that has had no order, and removes the cgroup.
func (t *procTree) close() {
	if t.launch != nil && t.pid == 0 {
		_ = unix.Kill(t.launch.pid, unix.SIGKILL) // not reaped yet, so the pid is still its own
		_, _ = syscall.Wait4(t.launch.pid, nil, 0, nil)
	}
	t.forget()
	if t.cgroup != nil {
		t.cgroup.remove()
		t.cgroup = nil
	}
}
