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
// command, which enters the command's cgroup and then executes it (the pid stays).
//
//	argv: shimName STATUS-FD CGROUP-DIR KEEPER-PID GUARD-PID PATH ARG0 ARG...
//
// A failure is written to STATUS-FD as four bytes (errno); it is closed by a successful exec.
const shimName = "onlyone-exec"

// IsShim reports whether this process was started as the exec shim.
func IsShim(args []string) bool { return len(args) >= 7 && args[0] == shimName }

// ShimMain is the shim's whole life; it returns only if the command can't be executed.
func ShimMain(args []string) int {
	status, err := strconv.Atoi(args[1])
	if err != nil {
		return 70
	}
	syscall.CloseOnExec(status)
	if dir := args[2]; dir != "" {
		// A cgroup that vanished or refuses us costs one of two ways of killing; the
		// descendants loop is the other.
		_ = enterCgroup(dir)
	}
	env := os.Environ()
	// Socket activation of the keeper: the descriptors are passed on, so the pid must be the
	// command's (and LISTEN_PIDFDID, which names the keeper once more, must go). Anybody
	// else's stays as it is.
	if i := slices.Index(env, "LISTEN_PID="+args[3]); i >= 0 {
		env[i] = "LISTEN_PID=" + strconv.Itoa(os.Getpid())
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "LISTEN_PIDFDID=") })
	}
	// The parent-death signal that the fork set belongs to the main thread, and execve from
	// another one would lose it: set it on the thread that executes. A guard that has died
	// before that sends none.
	runtime.LockOSThread()
	if err := setParentDeathSignal(); err != nil || strconv.Itoa(os.Getppid()) != args[4] {
		return 70
	}
	err = syscall.Exec(args[5], args[6:], env)
	errno, _ := err.(syscall.Errno)
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(errno))
	_, _ = syscall.Write(status, b[:])
	return 127
}
