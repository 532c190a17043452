package supervisor

import (
	"sync"
	"syscall"
)

// processGroups are the groups that this process has started the leaders of: all that can
// be told of a tree where the system has no reapers (macOS). What leaves its group (setsid,
// setpgid) is lost.
type processGroups struct {
	mu  sync.Mutex
	ids []int
}

// started adds the group of a leader that was started.
func (g *processGroups) started(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ids = append(g.ids, pid)
}

// signal sends sig to every group.
func (g *processGroups) signal(sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range g.ids {
		_ = syscall.Kill(-id, sig)
	}
}

// empty reports whether nothing is left in any group. A zombie counts until its parent, or
// whoever adopts it, has reaped it. An empty one is forgotten: its number
// may become somebody else's.
func (g *processGroups) empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	var left []int
	for _, id := range g.ids {
		if syscall.Kill(-id, 0) != syscall.ESRCH {
			left = append(left, id)
		}
	}
	g.ids = left
	return len(left) == 0
}
