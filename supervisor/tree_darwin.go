package supervisor

import (
	"errors"
	"os"
	"syscall"
)

// descendants on macOS: there are no reapers, so what daemonizes is lost. The process
// groups of guard and command are all that is killed and waited for.
type descendants struct {
	processGroups
	except map[int]bool
	more   bool // reapPass leaves none of the dead
}

func (d *descendants) killPass() { d.signal(syscall.SIGKILL) }

func (d *descendants) reapPass(ended func(pid int, status syscall.WaitStatus)) (empty bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case errors.Is(err, syscall.ECHILD), err == nil && pid == 0:
			return d.empty()
		case err != nil:
			return false
		default:
			ended(pid, status)
		}
	}
}

// termAll: the command gets it, too, if it gets one at all.
func (d *descendants) termAll(int) {
	d.signal(syscall.SIGTERM)
	d.signal(syscall.SIGCONT)
}

func (d *descendants) names() []string {
	if d.empty() {
		return nil
	}
	return []string{"a process of the command's group"}
}

// childrenOf: nobody is excepted, since only our groups are killed.
func childrenOf(int) []int { return nil }

func becomeSubreaper() error      { return nil }
func setParentDeathSignal() error { return nil }

// PlatformLimit says what this system can't promise; "" if the promise holds.
func PlatformLimit() string {
	return "on macOS onlyone is for development: the promise does not hold (what leaves the command's process group isn't stopped, and nothing is if onlyone and its guard are killed)"
}

// ownExecutable: a binary that is replaced while it runs is found in its new form.
func ownExecutable() (string, error) { return os.Executable() }

// commandAttr makes the command the leader of a group of its own, since the group is what
// is killed. So it isn't in a terminal's foreground: reading from one stops it, and ^C
// reaches it through the keeper.
func commandAttr(int, bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
