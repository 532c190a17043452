package consulsession

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// pauseRaces is how many acquires are raced by a pause, by pauseRacers at once.
const (
	pauseRaces  = 1000
	pauseRacers = 8
)

// A pause that is set in the very moment of an acquire wins or loses cleanly, on a real
// Consul: if the acquire was first, the holder's next check tells of the pause; if the pause
// was first, the lock isn't acquired, and nobody gets it before resume.
func TestPauseRacesReal(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Consul servers")
	}
	consultest.Each(t, func(t *testing.T, version string) {
		races := pauseRaces
		s := consultest.Start(t, consultest.Options{Version: version})
		var acquiredFirst, pausedFirst atomic.Int64
		var wg sync.WaitGroup
		for i := range pauseRacers {
			wg.Go(func() {
				r := newPauseRace(t, s, fmt.Sprintf("race-%d", i))
				for range races / pauseRacers {
					if r.once() {
						acquiredFirst.Add(1)
					} else {
						pausedFirst.Add(1)
					}
				}
			})
		}
		wg.Wait()
		a, p := acquiredFirst.Load(), pausedFirst.Load()
		t.Logf("%d races: the acquire was first in %d, the pause in %d", a+p, a, p)
		if a == 0 || p == 0 { // a busy machine shifts it
			t.Errorf("of %d races the acquire won %d and the pause %d: they don't meet", races, a, p)
		}
	})
}

type pauseRace struct {
	t      *testing.T
	s      *consultest.Server
	name   string
	o      *Operator
	window time.Duration // a little longer than an acquire takes
}

func newPauseRace(t *testing.T, s *consultest.Server, name string) *pauseRace {
	client := ClientConfig{Addresses: []string{s.Addr}}
	o, err := NewOperator(OperatorConfig{Client: client, Prefix: "onlyone", Timeout: 10 * time.Second, By: "test"})
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(o.Close)
	return &pauseRace{t, s, name, o, 5 * time.Millisecond}
}

// acquire contends once. The contender is closed when the term isn't needed any more.
func (r *pauseRace) acquire() (t *Term, closeIt func(), err error) {
	start := time.Now()
	c, err := NewContender(Config{Client: ClientConfig{Addresses: []string{r.s.Addr}}, Prefix: "onlyone", Name: r.name,
		Lease: 20 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second, NoWait: true, Host: "h", Pid: 1, Command: "job",
		Now:    func() time.Duration { return time.Since(start) },
		Jitter: func(most time.Duration) time.Duration { return most / 2 }, Log: zerolog.Nop()})
	if err != nil {
		return nil, func() {}, err
	}
	t, err = c.Acquire(r.t.Context(), always)
	return t, c.Close, err
}

// once is one race; true if the acquire was first.
func (r *pauseRace) once() bool {
	type result struct {
		term    *Term
		closeIt func()
		err     error
		took    time.Duration
	}
	done := make(chan result, 1)
	begin := time.Now()
	go func() { t, c, err := r.acquire(); done <- result{t, c, err, time.Since(begin)} }()
	time.Sleep(rand.N(r.window))
	if _, _, err := r.o.Pause(r.t.Context(), r.name, time.Now().Add(time.Hour), ""); err != nil {
		r.t.Error(err)
	}
	paused := r.s.Key(r.t, "onlyone/"+r.name+"/.paused")
	got := <-done
	defer got.closeIt()
	_, isPaused := errors.AsType[*PausedError](got.err)
	switch {
	case paused == nil:
		r.t.Error("an acquire has taken the pause away")
	case got.err == nil && got.term.Token() > paused.ModifyIndex:
		r.t.Errorf("acquired by %d, while paused since %d", got.term.Token(), paused.ModifyIndex)
	case got.err == nil:
		r.window = (r.window*7 + got.took*5/4) / 8
		if o, err := got.term.Check(r.t.Context()); err != nil || o.Paused == nil {
			r.t.Errorf("the holder isn't told of the pause: %+v, %v", o, err)
		}
		if err := got.term.Release(r.t.Context(), Ended{Started: begin, Ended: time.Now(), Exit: 143, Outcome: "stopped"}); err != nil {
			r.t.Error(err)
		}
	case !isPaused:
		r.t.Errorf("acquire: %v", got.err)
	}
	t, closeIt, err := r.acquire()
	defer closeIt()
	if t != nil {
		r.t.Errorf("acquired while paused, by %d", t.Token())
	} else if _, ok := errors.AsType[*PausedError](err); !ok {
		r.t.Errorf("while paused: %v", err)
	}
	if was, err := r.o.Resume(r.t.Context(), r.name); err != nil || !was {
		r.t.Errorf("resume: %v, %v", was, err)
	}
	return got.err == nil
}
