//go:build darwin || freebsd

package supervisor

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

// What only Linux has: cgroups, PID namespaces, and a guard that asks for priority. Without
// them a command is killed by its descent alone, and later on a machine that is starved.

func guardAttr(pidns bool) (*syscall.SysProcAttr, error) {
	if pidns {
		return nil, fmt.Errorf("%s has no PID namespaces", runtime.GOOS)
	}
	return &syscall.SysProcAttr{Setpgid: true}, nil
}

func mountProc() error { return errors.ErrUnsupported }

func (t *procTree) realtime(bool) {}
func lockMemory()                 {}

type cgroup struct{ dir string }

func newCgroup(int) (*cgroup, error) { return nil, errors.ErrUnsupported }
func enterCgroup(string) error       { return errors.ErrUnsupported }
func removeCgroups(int)              {}

func (*cgroup) bear(*syscall.SysProcAttr) (func(), error) { return nil, errors.ErrUnsupported }

func (*cgroup) kill()           {}
func (*cgroup) remove()         {}
func (*cgroup) populated() bool { return false }
