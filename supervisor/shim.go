package supervisor

import (
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// shimName is argv[0] of the exec shim: the same binary, between the guard and the
// command, which is in the command's cgroup, waits for its order and then executes it (the pid
// stays).
//
//	argv: shimName WORDS-FD ORDER-FD CGROUP-DIR KEEPER-PID GUARD-PID
//
// It writes shimAlive to WORDS-FD before it reads anything, shimExecutes as the last thing before
// the exec, and a failure as four bytes (errno); a successful exec closes it. From ORDER-FD it
// reads one frame, frameStart. With CGROUP-DIR it moves there first.
const shimName = "onlyone-exec"

// The words of a shim.
const (
	shimAlive    = 'A'
	shimExecutes = 'X'
)

// IsShim reports whether this process was started as the exec shim.
func IsShim(args []string) bool { return len(args) == 6 && args[0] == shimName }

// ShimMain is the shim's whole life; it returns only if the command can't be executed, or
// needn't be.
func ShimMain(args []string) int {
	words, err1 := strconv.Atoi(args[1])
	order, err2 := strconv.Atoi(args[2])
	if err1 != nil || err2 != nil {
		return 70
	}
	syscall.CloseOnExec(words)
	syscall.CloseOnExec(order)
	if dir := args[3]; dir != "" {
		// A cgroup that vanished or refuses us costs one of two ways of killing; the
		// descendants loop is the other.
		_ = enterCgroup(dir)
	}
	// The parent-death signal that the fork set belongs to the main thread, and execve from
	// another one would lose it: set it on the thread that executes. A guard that has died
	// before that sends none.
	runtime.LockOSThread()
	if err := setParentDeathSignal(); err != nil || strconv.Itoa(os.Getppid()) != args[5] {
		return 70
	}
	if _, err := syscall.Write(words, []byte{shimAlive}); err != nil {
		return 70
	}
	c, err := readOrder(order)
	if err != nil {
		return 0 // the guard needs no command, or has gone
	}
	env := activated(c.Env, args[4])
	if _, err := syscall.Write(words, []byte{shimExecutes}); err != nil {
		return 70
	}
	err = syscall.Exec(c.Path, c.Args, env)
	errno, _ := err.(syscall.Errno)
	_, _ = syscall.Write(words, binary.LittleEndian.AppendUint32(nil, uint32(errno)))
	return 127
}

// readOrder waits for the command.
func readOrder(fd int) (Command, error) {
	var f frames
	buf := make([]byte, 4096)
	for {
		n, err := syscall.Read(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return Command{}, errFrame
		}
		f.add(buf[:n])
		kind, payload, ok, err := f.next()
		switch {
		case err != nil:
			return Command{}, err
		case ok && kind != frameStart:
			return Command{}, errFrame
		case ok:
			return parseCommand(payload)
		}
	}
}

// activated is env for a command that takes the keeper's place in socket activation: the
// descriptors are passed on, so the pid must be the command's (and LISTEN_PIDFDID, which names
// the keeper once more, must go). Anybody else's stays as it is.
func activated(env []string, keeper string) []string {
	if i := slices.Index(env, "LISTEN_PID="+keeper); i >= 0 {
		env[i] = "LISTEN_PID=" + strconv.Itoa(os.Getpid())
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "LISTEN_PIDFDID=") })
	}
	return env
}
