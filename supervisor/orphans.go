package supervisor

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Orphans are what PID 1 of a container inherits, also of what isn't the command's (a probe,
// docker exec). While there is a guard, the keeper's end of it reaps them with all else. Without
// one (a standby, for months) Reap does, or zombies would fill the table of processes.
type Orphans struct {
	guard sync.Mutex // held while there is a guard
}

// Reap collects orphans whenever there is no guard, until stop is called.
func (o *Orphans) Reap() (stop func()) {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reapOn(sig, true, func() (more bool) { // at first those that were there before
			o.guard.Lock()
			defer o.guard.Unlock()
			var d descendants
			d.reapPass(func(int, syscall.WaitStatus) {})
			return d.more
		})
	}()
	return func() { signal.Stop(sig); close(sig); <-done }
}

// guarded is called before a guard is started; done, once, when it is gone.
func (o *Orphans) guarded() (done func()) {
	if o == nil {
		return func() {}
	}
	o.guard.Lock()
	return o.guard.Unlock
}
