package supervisor

import (
	"encoding/binary"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// launch is a command before it runs: an exec shim that the guard has forked ahead, while
// the keeper still acquires the lock, and that waits for its order. It has executed nothing
// of the command's, and ends when the guard does.
//
// The shim is born in the command's cgroup (CLONE_INTO_CGROUP, Linux 5.7), since to move
// there takes 6 to 13 ms (cgroup_threadgroup_rwsem: an RCU grace period). But current kernels
// kill at birth what is started into a cgroup, or from one, of which exactly one was ever
// killed by cgroup.kill, as systemd does with units. So a shim says that it is alive before
// it reads its order; one that ends without that word has executed nothing, and another one is
// forked that moves there by itself.
//
// The guard doesn't execute the command itself: until an exec is done, the thread that forked
// stands still in vfork, and the exec of a command on a file system that hangs would hold the
// guard over its deadlines.
type launch struct {
	pid      int
	born     bool   // in the cgroup
	alive    bool   // it has said so
	executes bool   // it has said so
	silent   bool   // it has ended without saying that
	words    int    // a descriptor: shimAlive, shimExecutes, the errno of an exec that failed; a successful exec closes it
	order    int    // another: the frame of the command goes there
	pending  []byte // of that frame
}

// fork starts an exec shim, in the cgroup if there is one.
func (t *procTree) fork(born bool) error {
	exe, err := ownExecutable()
	if err != nil {
		return err
	}
	words, err := newPipe()
	if err != nil {
		return err
	}
	order, err := newPipe()
	if err != nil {
		closePipe(words)
		return err
	}
	sys, dir := commandAttr(t.pgid, t.sameGroup), ""
	switch {
	case born:
		done, err := t.cgroup.bear(sys)
		if err != nil {
			closePipe(words)
			closePipe(order)
			return err
		}
		defer done()
	case t.cgroup != nil:
		dir = t.cgroup.dir
	}
	argv := []string{shimName, strconv.Itoa(words[1]), strconv.Itoa(order[0]), dir, strconv.Itoa(t.keeper), strconv.Itoa(os.Getpid())}
	// The shim's ends keep their numbers and lose CLOEXEC for this one exec; this process
	// forks nothing else.
	for _, fd := range []int{words[1], order[0]} {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		_ = unix.SetNonblock(fd, false)
	}
	// Its own environment: the command's comes with the order.
	pid, err := syscall.ForkExec(exe, argv, &syscall.ProcAttr{Env: []string{"GOMAXPROCS=1", "GOGC=off"}, Files: []uintptr{0, 1, 2}, Sys: sys})
	unix.Close(words[1])
	unix.Close(order[0])
	if err != nil {
		unix.Close(words[0])
		unix.Close(order[1])
		return err
	}
	t.started(pid)
	t.launch = &launch{pid: pid, born: born, words: words[0], order: order[1]}
	return nil
}

// prepare forks the shim of the command to come.
func (t *procTree) prepare() error {
	if t.cgroup == nil {
		t.cgroup, _ = newCgroup(t.keeper)
	}
	if t.cgroup != nil && t.fork(true) == nil {
		return nil
	}
	return t.fork(false)
}

// again forks the shim anew after one that was killed at birth, and gives it the order that
// the first one has never read.
func (t *procTree) again() error {
	t.launch.close()
	t.launch = nil
	if err := t.fork(false); err != nil {
		return err
	}
	if t.command != nil {
		t.give()
	}
	return nil
}

// give sends the order, as far as the pipe takes it.
func (t *procTree) give() {
	t.pid = t.launch.pid
	t.launch.pending = t.command
	t.launch.push()
}

// push writes what is left of the order. A shim that has gone has said what there is to say.
func (l *launch) push() {
	for len(l.pending) > 0 {
		n, err := unix.Write(l.order, l.pending)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return
		case err != nil:
			l.pending = nil
		default:
			l.pending = l.pending[n:]
		}
	}
}

// word is what a shim's silence or its words mean.
type word uint8

const (
	wordNone     word = iota // nothing new
	wordExecuted             // it is the command now, or has ended before that
	wordFailed               // it couldn't execute the command: errno
	wordSilent               // it has ended, perhaps at birth, and has executed nothing
)

// hear reads what the shim has said, and goes on with its order. After wordSilent, which is said
// each time, it is for the caller to call again or forget; after the other words there is no
// launch any more.
func (t *procTree) hear() (word, syscall.Errno) {
	for l := t.launch; l != nil; {
		if l.silent {
			return wordSilent, 0
		}
		l.push()
		buf := make([]byte, 6)
		n, err := unix.Read(l.words, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return wordNone, 0
		}
		said := buf[:max(n, 0)]
		for !l.executes && len(said) > 0 {
			l.alive, l.executes, said = true, said[0] == shimExecutes, said[1:]
		}
		switch {
		case len(said) == 4:
			t.forget()
			return wordFailed, syscall.Errno(binary.LittleEndian.Uint32(said))
		case n > 0:
			continue
		case !l.executes:
			l.silent = true
			continue
		}
		t.forget()
		return wordExecuted, 0
	}
	return wordNone, 0
}

// diedAtBirth: it has ended, and perhaps because it was born in the cgroup.
func (l *launch) diedAtBirth() bool { return l.silent && l.born && !l.alive }

// forget ends the launch on our side.
func (t *procTree) forget() {
	if t.launch != nil {
		t.launch.close()
		t.launch = nil
	}
}

func (l *launch) close() {
	unix.Close(l.words)
	unix.Close(l.order)
}

func closePipe(p [2]int) {
	unix.Close(p[0])
	unix.Close(p[1])
}
