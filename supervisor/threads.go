package supervisor

import (
	"runtime"
	"sync"
)

const (
	// mostProcs is for Go code that runs at the same time: keeper and guard wait most of the time.
	mostProcs = 4
	// reservedThreads are for that, and for calls that block: cgroup.kill, /proc, stderr, signals.
	reservedThreads = 12
)

// reserveThreads has Go's runtime start what threads this process may need later. It ends a process
// that can't have one more, and a command that fills its limit of processes (ulimit -u, TasksMax=)
// would so end first the guard that is about to kill it, and then the keeper. Go keeps idle threads.
func reserveThreads() {
	if runtime.GOMAXPROCS(0) > mostProcs {
		runtime.GOMAXPROCS(mostProcs)
	}
	var ready, done sync.WaitGroup
	hold := make(chan struct{})
	ready.Add(reservedThreads)
	for range reservedThreads {
		done.Go(func() {
			runtime.LockOSThread() // so that each has one of its own
			ready.Done()
			<-hold
			runtime.UnlockOSThread()
		})
	}
	ready.Wait()
	close(hold)
	done.Wait()
}
