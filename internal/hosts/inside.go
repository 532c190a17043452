//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// initMain is PID 1 of the rig's namespace. It starts the director, reaps whatever is left
// to it, and ends with the director; then the kernel kills the rest.
func initMain(args []string) int {
	o, err := decodeOptions(args)
	if err == nil {
		err = prepare(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: the rig's init:", err)
		return exitFailed
	}
	director, err := syscall.ForkExec("/proc/self/exe", append([]string{os.Args[0], directMode}, args...),
		&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: cannot start the director:", err)
		return exitFailed
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return exitFailed
		case pid == director && status.Exited():
			return status.ExitStatus()
		case pid == director:
			fmt.Fprintf(os.Stderr, "error: the director ended by %s\n", status.Signal())
			return exitFailed
		}
	}
}

// prepare makes this mount namespace ours.
func prepare(o options) error {
	if o.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(o.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot keep our mounts to ourselves: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	return nil
}

// enterMain becomes a program of a host: enter HOST NETNS AHEAD CMD [ARG...], where AHEAD are
// the seconds by which the host's clocks are ahead.
func enterMain(args []string) int {
	if len(args) < 4 {
		return exitUsage
	}
	err := enter(args[0], args[1], args[2])
	if err == nil {
		err = fmt.Errorf("cannot execute %s: %w", args[3], syscall.Exec(args[3], args[3:], os.Environ()))
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return exitFailed
}

func enter(host, netns, ahead string) error {
	runtime.LockOSThread() // namespaces are the thread's, and it will be the one that executes
	fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", netns, err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter %s: %w", netns, err)
	}
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("cannot have a host name: %w", err)
	}
	if err := unix.Sethostname([]byte(host)); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	if n, err := strconv.Atoi(ahead); err != nil || n == 0 {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("cannot make a time namespace: %w", err)
	}
	// The thread's file: unshare was for this thread alone.
	offsets := fmt.Sprintf("monotonic %s 0\nboottime %s 0\n", ahead, ahead)
	if err := os.WriteFile("/proc/thread-self/timens_offsets", []byte(offsets), 0); err != nil {
		if err2 := os.WriteFile("/proc/self/timens_offsets", []byte(offsets), 0); err2 != nil {
			return fmt.Errorf("cannot set the clocks: %w", err2)
		}
	}
	return nil
}
