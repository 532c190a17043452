//go:build linux && (amd64 || arm64)

package main

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kinds are forked without exec, as C programs do it: one thread each, and fast
// enough for a fork bomb. In the child of such a fork the Go runtime is dead (its other
// threads and whatever they had locked don't exist), so all that runs there is nosplit,
// allocates nothing and makes raw system calls only.

type kind int

const (
	plain kind = iota
	deaf
	many
	group
	session
	daemon
	stopped
	subreaper
	pidns
	nobody
	vfork
	busy
	hopper
	bomb
	threads
	headless
	setuid
)

var kinds = [...]struct {
	name  string
	pids  int  // reported in the ready file, of each
	count int  // unless one is given
	state byte // as in /proc/PID/stat, of the first one
	wild  bool // shorter life
	exec  bool // executed, not only forked
}{
	plain:     {name: "plain", pids: 1, count: 1},
	deaf:      {name: "deaf", pids: 1, count: 1},
	many:      {name: "many", pids: 1, count: 300},
	group:     {name: "group", pids: 1, count: 1},
	session:   {name: "session", pids: 1, count: 1},
	daemon:    {name: "daemon", pids: 1, count: 1},
	stopped:   {name: "stopped", pids: 1, count: 1, state: 'T'},
	subreaper: {name: "subreaper", pids: 2, count: 1},
	pidns:     {name: "pidns", pids: 1, count: 1},
	nobody:    {name: "nobody", pids: 1, count: 1},
	vfork:     {name: "vfork", pids: 2, count: 1, state: 'D'},
	busy:      {name: "busy", pids: 1, count: 1, wild: true},
	hopper:    {name: "hopper", pids: 1, count: 1, wild: true},
	bomb:      {name: "bomb", pids: 1, count: 128, wild: true},
	threads:   {name: "threads", pids: 1, count: 1, exec: true},
	headless:  {name: "headless", pids: 1, count: 1, state: 'Z', exec: true},
	setuid:    {name: "setuid", pids: 1, count: 1, exec: true},
}

func lookup(name string) kind {
	for k := range kinds {
		if kinds[k].name == name {
			return kind(k)
		}
	}
	return -1
}

// job is all that the processes of one kind need, made before the fork.
type job struct {
	kind  kind
	name  [16]byte
	slots []int32 // shared memory: the pids of those that are up
	outer int     // pid of the first one, where it isn't the one to tell
	end   int64   // of its life, CLOCK_BOOTTIME, ns

	// What system calls point at.
	event struct { // struct sigevent
		value         uintptr
		signo, notify int32
		_             [48]byte
	}
	life    struct{ interval, value unix.Timespec }
	timer   int32
	time    unix.Timespec
	action  [8]uintptr // struct sigaction: handler, flags, restorer, mask
	old     [8]uintptr
	mask    [2]uintptr
	oldMask [2]uintptr
	random  uint32
}

func newJob(k kind, mem []byte, end int64) *job {
	j := &job{kind: k, end: end}
	if mem != nil {
		j.slots = unsafe.Slice((*int32)(unsafe.Pointer(&mem[0])), len(mem)/4)
	}
	if k >= 0 {
		copy(j.name[:15], "nasty-"+kinds[k].name)
	}
	// SIGKILL: it also ends what is deaf, stopped or in D.
	j.event.signo = int32(unix.SIGKILL)
	j.life.value = unix.NsecToTimespec(end)
	return j
}

func (j *job) pid(i int) int {
	if i == 0 && j.outer != 0 {
		if j.kind == pidns && atomic.LoadInt32(&j.slots[0]) == 0 {
			return 0
		}
		return j.outer
	}
	return int(atomic.LoadInt32(&j.slots[i]))
}

func (j *job) setName(name string) {
	j.name = [16]byte{}
	copy(j.name[:15], name)
	j.showName()
}

// start forks the job off the main process. The result is a pid or, negative, an errno.
//
//go:nosplit
func (j *job) start() int32 {
	var flags uintptr
	if j.kind == pidns {
		flags = unix.CLONE_NEWPID
	}
	// No signal may reach the runtime's handlers in the child.
	j.mask = [2]uintptr{^uintptr(0), ^uintptr(0)}
	sys(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, ptr(&j.mask), ptr(&j.oldMask), 8, 0)
	pid := j.fork(flags)
	if pid == 0 {
		j.dropHandlers()
		j.showName()
	}
	sys(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, ptr(&j.oldMask), 0, 8, 0)
	if pid == 0 {
		j.run()
		j.sleep()
		exit()
	}
	return pid
}

// run is the life of the forked process. When it returns, the process sleeps.
//
//go:nosplit
func (j *job) run() {
	switch j.kind {
	case plain, many:
		j.up(0)
	case deaf, pidns:
		j.ignoreStops()
		j.up(0)
	case group:
		sys(unix.SYS_SETPGID, 0, 0, 0, 0, 0)
		j.up(0)
	case session:
		sys(unix.SYS_SETSID, 0, 0, 0, 0, 0)
		j.up(0)
	case daemon:
		j.daemonize()
		j.up(0)
	case stopped:
		j.daemonize()
		j.up(0)
		sys(unix.SYS_KILL, uintptr(getpid()), uintptr(unix.SIGSTOP), 0, 0, 0)
	case nobody:
		j.daemonize()
		sys(unix.SYS_SETGROUPS, 0, 0, 0, 0, 0)
		sys(unix.SYS_SETRESGID, 65534, 65534, 65534, 0, 0)
		if sys(unix.SYS_SETRESUID, 65534, 65534, 65534, 0, 0) == 0 {
			j.up(0)
		}
	case subreaper:
		j.ignoreStops()
		sys(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		if j.fork(0) == 0 {
			j.daemonize()
			j.up(1)
			return
		}
		j.up(0)
		for sys(unix.SYS_WAIT4, ^uintptr(0), 0, 0, 0, 0) > 0 {
		}
	case vfork:
		// The parent is in D until its child ends. Without CLONE_VM the two share no
		// stack, and the kernel makes the parent wait all the same.
		j.up(0)
		if j.fork(unix.CLONE_VFORK) == 0 {
			j.up(1)
		}
	case busy:
		for sig := uintptr(1); sig <= 64; sig++ {
			j.ignore(sig)
		}
		j.up(0)
		for j.now() < j.end {
		}
	case hopper:
		j.hop()
	case bomb:
		j.explode()
	}
}

// daemonize is the classical double fork. It is over when the parent has changed.
//
//go:nosplit
func (j *job) daemonize() {
	sys(unix.SYS_SETSID, 0, 0, 0, 0, 0)
	j.ignoreStops()
	first := getpid()
	if j.fork(0) != 0 {
		exit()
	}
	for sys(unix.SYS_GETPPID, 0, 0, 0, 0, 0) == int(first) {
		j.nap(1e5)
	}
}

// hop forks and lets the parent exit, again and again, as fast as it goes. In a session
// of its own, so that the process group can be named (and cleaned up).
//
//go:nosplit
func (j *job) hop() {
	sys(unix.SYS_SETSID, 0, 0, 0, 0, 0)
	j.ignoreStops()
	j.up(0)
	for j.now() < j.end {
		switch pid := j.fork(0); {
		case pid > 0:
			exit()
		case pid == 0:
			atomic.AddInt32(&j.slots[1], 1)
		default:
			j.nap(1e6)
		}
	}
}

// explode keeps all slots but the first filled with living processes: each of them
// forks another one wherever it finds the holder of a slot gone, and after 250 ms hands
// its own slot on to a fork of itself. So what kills must win a race against all at once.
//
//go:nosplit
func (j *job) explode() {
	sys(unix.SYS_SETSID, 0, 0, 0, 0, 0)
	j.ignoreStops()
	j.up(0)
	mine := 1
	j.up(mine)
	j.random = uint32(getpid())
	for age := 0; j.now() < j.end; age++ {
		if age > 125 {
			switch pid := j.fork(0); {
			case pid > 0:
				exit()
			case pid == 0:
				j.up(mine)
				age = 0
			}
		}
		j.random = j.random*1664525 + 1013904223
		i := 1 + int(j.random>>8)%(len(j.slots)-1)
		holder := atomic.LoadInt32(&j.slots[i])
		gone := holder == 0 || sys(unix.SYS_KILL, uintptr(holder), 0, 0, 0, 0) == -int(unix.ESRCH)
		if gone && atomic.CompareAndSwapInt32(&j.slots[i], holder, getpid()) && j.fork(0) == 0 {
			mine = i
			j.up(mine)
			j.random ^= uint32(getpid()) << 8
			age = 0
		}
		j.nap(2e6)
	}
}

//go:nosplit
func (j *job) up(i int) {
	atomic.StoreInt32(&j.slots[i], getpid())
}

// fork is clone(2) without shared memory; the new process is mortal.
//
//go:nosplit
func (j *job) fork(flags uintptr) int32 {
	pid := sys(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0)
	if pid == 0 {
		j.beMortal()
	}
	return int32(pid)
}

// beMortal has the kernel kill the calling process when its life is over, whatever state
// it is in. (But not the init of a PID namespace: that one ends in sleep.)
//
//go:nosplit
func (j *job) beMortal() {
	sys(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME, ptr(&j.event), ptr(&j.timer), 0, 0)
	sys(unix.SYS_TIMER_SETTIME, uintptr(j.timer), unix.TIMER_ABSTIME, ptr(&j.life), 0, 0)
}

//go:nosplit
func (j *job) showName() {
	sys(unix.SYS_PRCTL, unix.PR_SET_NAME, ptr(&j.name), 0, 0, 0)
}

// dropHandlers sets signals to their defaults, except those that are ignored (nohup).
//
//go:nosplit
func (j *job) dropHandlers() {
	for sig := uintptr(1); sig <= 64; sig++ {
		sys(unix.SYS_RT_SIGACTION, sig, 0, ptr(&j.old), 8, 0)
		if j.old[0] != 1 {
			j.action[0] = 0
			sys(unix.SYS_RT_SIGACTION, sig, ptr(&j.action), 0, 8, 0)
		}
	}
}

//go:nosplit
func (j *job) ignore(sig uintptr) {
	j.action[0] = 1
	sys(unix.SYS_RT_SIGACTION, sig, ptr(&j.action), 0, 8, 0)
}

//go:nosplit
func (j *job) ignoreStops() {
	j.ignore(uintptr(unix.SIGTERM))
	j.ignore(uintptr(unix.SIGHUP))
	j.ignore(uintptr(unix.SIGINT))
}

// sleep lasts to the end of the life.
//
//go:nosplit
func (j *job) sleep() {
	for j.now() < j.end {
		sys(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_BOOTTIME, unix.TIMER_ABSTIME, ptr(&j.life.value), 0, 0)
	}
}

//go:nosplit
func (j *job) nap(ns int64) {
	j.time = unix.Timespec{Nsec: ns}
	sys(unix.SYS_NANOSLEEP, ptr(&j.time), 0, 0, 0, 0)
}

//go:nosplit
func (j *job) now() int64 {
	sys(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, ptr(&j.time), 0, 0, 0)
	return j.time.Sec*1e9 + j.time.Nsec
}

//go:nosplit
func getpid() int32 {
	return int32(sys(unix.SYS_GETPID, 0, 0, 0, 0, 0))
}

//go:nosplit
func exit() {
	for {
		sys(unix.SYS_EXIT_GROUP, 0, 0, 0, 0, 0)
	}
}

// sys makes a raw system call. A negative result is an errno.
//
//go:nosplit
func sys(nr, a, b, c, d, e uintptr) int {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	if errno != 0 {
		return -int(errno)
	}
	return int(r)
}

//go:nosplit
func ptr[T any](p *T) uintptr {
	return uintptr(unsafe.Pointer(p))
}
