//go:build linux

package main_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

var (
	copiesFor  = flag.Duration("copies.for", 30*time.Second, "how long TestCopiesWithFaults does harm")
	copiesSeed = flag.Uint64("copies.seed", 0, "which harm; 0: another one each time")
)

// perCopy is the command line of a Child that writes into a file of its copy.
func perCopy(file string, o consultest.ChildOptions) []string {
	child := consultest.Child("", o)
	return append([]string{"sh", "-c", `exec "$@" "$0.$ONLYONE_COPY"`, file}, child[:len(child)-1]...)
}

// TestCopiesWithFaults: 12 contenders for 5 copies, while some are killed, their guards are
// killed, and some of either are stopped for a while. Never two with the same number, of
// which there are five; so never more than five. The tokens of each copy grow. When the
// faults are over, all five run.
func TestCopiesWithFaults(t *testing.T) {
	t.Parallel()
	seed := *copiesSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	consultest.Each(t, func(t *testing.T, version string) {
		t.Logf("go test -run '%s' -copies.for %s -copies.seed %d", t.Name(), *copiesFor, seed)
		f := &copiesField{newJob(t, shared(t, version)), 5, rand.New(rand.NewPCG(seed, 0)), make([]*proc, 12), map[*proc]frozen{}, map[*proc]bool{}, map[string]int{}}
		f.slowLeave = true
		for i := range f.contenders {
			f.contend(i)
		}
		for end := time.Now().Add(*copiesFor); time.Now().Before(end); {
			time.Sleep(f.between(200*time.Millisecond, 1500*time.Millisecond))
			f.thaw(time.Now())
			f.harm()
			f.replace()
		}
		f.thaw(time.Now().Add(time.Hour))
		f.await("all copies run again", func() bool {
			f.replace()
			alive := consultest.Marked(t.Name())
			n := 0
			for i := range f.copies {
				all := consultest.ReadIntervals(t, f.of(i))
				if len(all) > 0 && all[len(all)-1].End == 0 && alive[all[len(all)-1].Pid] != "" {
					n++
				}
			}
			return n == f.copies
		})
		for _, p := range f.contenders {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, p := range f.contenders {
			<-p.done
		}
		f.lived()
		f.sweep()
	})
}

type copiesField struct {
	*job
	copies     int
	r          *rand.Rand
	contenders []*proc
	frozen     map[*proc]frozen
	killed     map[*proc]bool
	ends       map[string]int // how many ended how
}

// frozen is a process that was stopped.
type frozen struct {
	pid   int
	until time.Time
}

func (f *copiesField) of(copy int) string { return fmt.Sprintf("%s.%d", f.file, copy) }

func (f *copiesField) between(least, most time.Duration) time.Duration {
	return least + time.Duration(f.r.Int64N(int64(most-least)))
}

func (f *copiesField) contend(i int) {
	life := f.between(200*time.Millisecond, 8*time.Second)
	f.contenders[i] = f.run(shortDials+fmt.Sprintf(" --copies %d", f.copies),
		perCopy(f.file, consultest.ChildOptions{Tag: fmt.Sprint(len(f.procs)), For: life, IgnoreTerm: f.r.IntN(3) == 0})...)
}

// replace starts a contender for each that has ended.
func (f *copiesField) replace() {
	for i, p := range f.contenders {
		select {
		case <-p.done:
		default:
			continue
		}
		how := p.cmd.ProcessState.String()
		f.ends[how]++
		switch how {
		case "exit status 0", "signal: killed", "exit status 79":
		case "exit status 70": // its guard was killed
		default:
			f.t.Errorf("%s: %s; it says:\n%s", p, how, p.stderr())
		}
		f.contend(i)
	}
}

// harm does one thing to one contender: to its onlyone or to the guard. Not to both, for that
// would be what isn't promised; nor to the one while it still mends what became of the other.
func (f *copiesField) harm() {
	p := f.contenders[f.r.IntN(len(f.contenders))]
	if _, is := f.frozen[p]; is || f.killed[p] {
		return
	}
	pid := p.cmd.Process.Pid
	if guard := consultest.Children(pid); len(guard) == 1 && f.r.IntN(2) == 0 {
		pid = guard[0]
	}
	if f.r.IntN(2) == 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		f.killed[p] = true
		return
	}
	if syscall.Kill(pid, syscall.SIGSTOP) == nil {
		f.frozen[p] = frozen{pid, time.Now().Add(f.between(100*time.Millisecond, 2*shortLease))}
	}
}

// thaw lets those go on whose time has come.
func (f *copiesField) thaw(now time.Time) {
	for p, z := range f.frozen {
		if now.After(z.until) {
			_ = syscall.Kill(z.pid, syscall.SIGCONT)
			delete(f.frozen, p)
		}
	}
}

// lived checks what the commands have written.
func (f *copiesField) lived() {
	files, _ := filepath.Glob(f.file + ".*")
	files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, ".alive") })
	if len(files) != f.copies {
		f.t.Errorf("commands of %d copies ran, want %d: %v", len(files), f.copies, files)
	}
	n := 0
	for i := range f.copies {
		all := consultest.ReadIntervals(f.t, f.of(i))
		consultest.NoOverlap(f.t, all)
		n += len(all)
	}
	f.t.Logf("%d commands ran; contenders ended: %v", n, f.ends)
}

// sweep removes the entries of contenders that couldn't leave the queue: the next one that
// waits would.
func (j *job) sweep() {
	j.t.Helper()
	j.await("no session is left", func() bool { return len(j.s.Sessions(j.t, "onlyone/"+j.name)) == 0 })
	if _, err := j.s.Client().KV().DeleteTree("onlyone/"+j.name+"/~queue/", nil); err != nil {
		j.t.Error(err)
	}
}
