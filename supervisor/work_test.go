package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// Exact instants of what is done with the lock beside running one command: restarts, limits,
// orders, hooks. As in time_test.go: acquired at 0 s, checks at 2 s, 4 s and so on. The
// jitter is half of the most.

// told has every host's onlyone told the same beyond the defaults, and its children live.
func told(life childLife, f func(c *Config)) func(w *world) {
	return func(w *world) {
		for _, h := range w.hosts {
			h.life, h.hooks = life, map[string]childLife{}
			h.tweak = func(c *Config) {
				c.Jitter = func(most time.Duration) time.Duration { return most / 2 }
				f(c)
			}
		}
	}
}

// lives asserts which children lived when, in order: "h1 0s-5s", "h1 fence 1s-2s".
func (w *world) lives(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, c := range w.children[:min(len(w.children), len(want))] {
		what := c.host.name
		if c.hook != "" {
			what += " " + c.hook
		}
		got = append(got, fmt.Sprintf("%s %s-%s", what, c.started, c.ended))
	}
	if g, w2 := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w2 {
		t.Errorf("children lived:\n%s\nwant:\n%s\n%s", g, w2, strings.Join(w.trace, "\n"))
	}
}

// outcome asserts how and when the n-th run of h ended.
func (h *simHost) outcome(t *testing.T, n int, kind Kind, at Instant) Outcome {
	t.Helper()
	if n >= len(h.outcomes) {
		t.Fatalf("%s: there were %d runs, want number %d\n%s", h.name, len(h.outcomes), n+1, strings.Join(h.w.trace, "\n"))
	}
	if o := h.outcomes[n]; o.Kind != kind || o.at != at {
		t.Errorf("%s ended with %d (%v) at %s, want %d at %s\n%s", h.name, o.Kind, o.Err, o.at, kind, at, strings.Join(h.w.trace, "\n"))
	}
	return h.outcomes[n].Outcome
}

// unheardRelease is how long a release is tried that nobody answers: the transaction, then the
// end of the session.
const unheardRelease = releaseLimit + 500*time.Millisecond

// endAfterRun lets the present run be the host's last one.
func (h *simHost) endAfterRun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.once = true
}

func (h *simHost) signal(s syscall.Signal) { h.signals <- Signal{Signal: s} }

// until sleeps until the world's clock shows d.
func (w *world) until(d Instant) { time.Sleep(d - w.now()) }

// order writes one for the holder, or a pause.
func (w *world) stepDown() {
	session, _ := w.model.Holder(simLockKey)
	w.model.PutKey("onlyone/"+simName+"/.step-down", fmt.Sprintf(`{"schema":1,"session":%q,"reason":"test"}`, session))
	w.model.PutKey(simLockKey+"-bell", fmt.Sprint(w.now()))
}

func (w *world) pauseFor(d time.Duration) {
	w.model.PutKey("onlyone/"+simName+"/.paused", fmt.Sprintf(`{"schema":1,"until":%q}`, time.Now().Add(d).UTC().Format(time.RFC3339Nano)))
	w.model.PutKey(simLockKey+"-bell", fmt.Sprint(w.now()))
}

func TestRestart(t *testing.T) {
	restart := func(p RestartPolicy, most int) func(*Config) {
		return func(c *Config) { c.Restart = Restart{Policy: p, Delay: time.Second, Most: most} }
	}
	for _, c := range []struct {
		name  string
		life  childLife
		tweak func(*Config)
		want  []string
	}{
		{"the pause doubles up to a minute", childLife{runs: 10 * time.Second, exit: 1}, restart(RestartOnFailure, -1),
			[]string{"h1 0s-10s", "h1 11s-21s", "h1 23s-33s", "h1 37s-47s", "h1 55s-1m5s", "h1 1m21s-1m31s", "h1 2m3s-2m13s", "h1 3m13s-3m23s", "h1 4m23s-4m33s"}},
		{"a minute of running begins anew", childLife{runs: time.Minute, exit: 1}, restart(RestartOnFailure, 1),
			[]string{"h1 0s-1m0s", "h1 1m1s-2m1s", "h1 2m2s-3m2s", "h1 3m3s-4m3s"}},
		{"the most restarts, then the next host", childLife{runs: 10 * time.Second, exit: 1}, restart(RestartOnFailure, 2),
			[]string{"h1 0s-10s", "h1 11s-21s", "h1 23s-33s", "h2 33s-43s", "h2 44s-54s", "h2 56s-1m6s"}},
		{"success is no failure", childLife{runs: 10 * time.Second}, restart(RestartOnFailure, -1), []string{"h1 0s-10s", "h2 10s-20s"}},
		{"always", childLife{runs: 10 * time.Second}, restart(RestartAlways, -1), []string{"h1 0s-10s", "h1 11s-21s", "h1 23s-33s"}},
		{"none", childLife{runs: 10 * time.Second, exit: 1}, restart(RestartNo, -1), []string{"h1 0s-10s", "h2 10s-20s"}},
		{"a limit of time is a failure", childLife{dawdle: time.Second}, func(c *Config) {
			restart(RestartOnFailure, -1)(c)
			c.MaxRuntime = 20 * time.Second
		}, []string{"h1 0s-21s", "h1 22s-43s", "h1 45s-1m6s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := sceneOf(t, 2, told(c.life, c.tweak), func(w *world) { at(5 * time.Minute) })
			w.lives(t, c.want...)
		})
	}
}

// The longest pause is a minute, or what was asked for if that is more, whatever the jitter.
func TestLongestDelayBetweenRestarts(t *testing.T) {
	for delay, want := range map[time.Duration]time.Duration{50 * time.Second: longestDelay, 3 * time.Minute: 3 * time.Minute} {
		w := sceneOf(t, 1, told(childLife{runs: time.Second, exit: 1}, func(c *Config) {
			c.Restart = Restart{Policy: RestartAlways, Delay: delay, Most: -1}
			c.Jitter = func(most time.Duration) time.Duration { return most - 1 }
		}), func(w *world) { at(10 * time.Minute) })
		if len(w.children) < 3 {
			t.Errorf("after %s: %d children", delay, len(w.children))
		}
		for i := range w.children[1:] {
			if rest := w.children[i+1].started - w.children[i].ended; rest != want {
				t.Errorf("after %s: rested for %s, want %s", delay, rest, want)
			}
		}
	}
}

// resting is a host whose command has ended at 5 s and is started again at 45 s.
func resting(c *Config) {
	c.Restart = Restart{Policy: RestartAlways, Delay: 40 * time.Second, Most: -1}
}

func TestRestingKeepsTheLease(t *testing.T) {
	life := childLife{runs: 5 * time.Second, exit: 1}
	t.Run("nobody else starts", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, resting), func(w *world) { w.until(46 * time.Second) })
		w.lives(t, "h1 0s-5s", "h1 45s-46s")
	})
	t.Run("an outage that is shorter than D moves nothing", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, resting), func(w *world) {
			w.until(10 * time.Second)
			for _, h := range w.hosts {
				h.net.SetFaults(status(500, "No cluster leader"))
			}
			w.until(22 * time.Second)
			for _, h := range w.hosts {
				h.net.SetFaults(nil)
			}
			w.until(46 * time.Second)
		})
		w.lives(t, "h1 0s-5s", "h1 45s-46s")
	})
	for name, lose := range map[string]struct {
		do  func(w *world)
		end Instant
	}{
		"session destroyed": {func(w *world) { s, _ := w.model.Holder(simLockKey); w.model.DestroySession(s) }, 9 * time.Second},
		"silence":           {func(w *world) { w.hosts[0].net.SetFaults(drop) }, 22600*time.Millisecond + unheardRelease},
		"keeper stopped over it": {func(w *world) {
			w.hosts[0].keeper.close()
			time.AfterFunc(40*time.Second, w.hosts[0].keeper.open)
		}, 49 * time.Second},
		"keeper stopped as the rest ends": {func(w *world) {
			time.AfterFunc(36*time.Second-1, w.hosts[0].keeper.close)
			time.AfterFunc(76*time.Second, w.hosts[0].keeper.open)
		}, 85 * time.Second},
	} {
		t.Run("lost: "+name, func(t *testing.T) {
			w := sceneOf(t, 1, told(life, resting), func(w *world) {
				w.hosts[0].endAfterRun()
				w.until(9 * time.Second)
				lose.do(w)
				w.until(2 * time.Minute)
			})
			w.hosts[0].outcome(t, 0, Lost, lose.end)
			if w.lives(t, "h1 0s-5s"); len(w.children) != 1 {
				t.Errorf("a command was started after the loss\n%s", strings.Join(w.trace, "\n"))
			}
		})
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run("told to end: "+sig.String(), func(t *testing.T) {
			w := sceneOf(t, 2, told(life, resting), func(w *world) {
				w.hosts[0].endAfterRun()
				w.until(9 * time.Second)
				w.hosts[0].signal(sig)
				w.until(10 * time.Second)
			})
			if o := w.hosts[0].outcome(t, 0, Interrupted, 9*time.Second); o.Signal != sig || o.Result.Restarts != 0 {
				t.Errorf("ended by %s, with %d restarts; want %s, without", o.Signal, o.Result.Restarts, sig)
			}
			w.lives(t, "h1 0s-5s", "h2 9s-10s")
		})
	}
	for name, sig := range map[string]Signal{
		"told to reload":               {Signal: syscall.SIGHUP, Reload: true},
		"told what is for the command": {Signal: syscall.SIGUSR1},
	} {
		t.Run(name, func(t *testing.T) {
			w := sceneOf(t, 1, told(life, resting), func(w *world) {
				w.until(9 * time.Second)
				w.hosts[0].signals <- sig
				w.until(46 * time.Second)
			})
			w.lives(t, "h1 0s-5s", "h1 45s-46s")
		})
	}
	t.Run("keeper killed: the guard releases", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, resting), func(w *world) {
			w.until(9 * time.Second)
			w.hosts[0].killKeeper(time.Minute)
			w.until(10 * time.Second)
		})
		w.lives(t, "h1 0s-5s", "h2 9s-10s")
	})
	t.Run("guard killed", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, resting), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(9 * time.Second)
			w.hosts[0].killGuard()
			w.until(10 * time.Second)
		})
		w.hosts[0].outcome(t, 0, Failed, 9*time.Second)
		w.lives(t, "h1 0s-5s", "h2 9s-10s")
	})
}

// A keeper that was stopped over the lease's end finds that the command had ended before, by
// itself: that is its end, not a loss.
func TestEndedUnderTheLease(t *testing.T) {
	for _, c := range []struct {
		runs Instant
		kind Kind
	}{{10 * time.Second, Ended}, {18 * time.Second, Ended}, {19 * time.Second, Lost}} {
		t.Run(c.runs.String(), func(t *testing.T) {
			w := sceneOf(t, 1, told(childLife{runs: c.runs, dawdle: 10 * time.Second}, func(*Config) {}), func(w *world) {
				w.hosts[0].endAfterRun()
				w.until(5 * time.Second) // the last proof was sent at 4 s: it counts until 18.6 s
				w.hosts[0].keeper.close()
				w.until(19500 * time.Millisecond)
				w.hosts[0].keeper.open()
				w.until(30 * time.Second)
			})
			o := w.hosts[0].outcome(t, 0, c.kind, 19500*time.Millisecond)
			if c.kind == Ended && (o.Result.Outcome != "exited" || o.Result.Exit != 0) {
				t.Errorf("%+v, want exited 0", o.Result)
			}
			// The record, with which a later host decides, says when that was, not when we woke.
			if ran := o.Result.Ended.Sub(o.Result.Started); c.kind == Ended && ran != c.runs {
				t.Errorf("ran for %s by the record, want %s", ran, c.runs)
			}
		})
	}
}

// What comes while only what the command left behind is being ended doesn't change how it ended.
func TestEndedWithLeftovers(t *testing.T) {
	for name, c := range map[string]struct {
		tweak func(*Config)
		do    func(w *world)
	}{
		"its time is over": {func(c *Config) { c.MaxRuntime = 6 * time.Second }, func(*world) {}},
		"a stop signal":    {func(*Config) {}, func(w *world) { w.hosts[0].signal(syscall.SIGTERM) }},
		"an order":         {func(*Config) {}, (*world).stepDown},
	} {
		t.Run(name, func(t *testing.T) {
			w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second, exit: 3, leaves: 2 * time.Second}, c.tweak), func(w *world) {
				w.hosts[0].endAfterRun()
				w.until(6 * time.Second)
				c.do(w)
				w.until(30 * time.Second)
			})
			o := w.hosts[0].outcome(t, 0, Ended, 7*time.Second)
			if o.TimedOut || o.Result.Outcome != "exited" || o.Result.Exit != 3 {
				t.Errorf("%+v, want exited 3", o.Result)
			}
		})
	}
}

// A stop signal that the command got, too (from a terminal, from systemd), has stopped it, though the
// guard has told it nothing.
func TestToldBesideTheCommand(t *testing.T) {
	for range 8 {
		w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second, exit: 3}, func(*Config) {}), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(4 * time.Second)
			w.hosts[0].guards.close() // the keeper's word doesn't come to it in time
			w.until(4900 * time.Millisecond)
			w.hosts[0].signal(syscall.SIGTERM)
			w.until(5500 * time.Millisecond)
			w.hosts[0].guards.open()
			w.until(30 * time.Second)
		})
		if o := w.hosts[0].outcome(t, 0, Ended, 5500*time.Millisecond); o.Result.Outcome != "stopped" || o.Result.Exit != 3 {
			t.Fatalf("%+v, want stopped 3", o.Result)
		}
	}
}

// What comes while only what the command left behind is being ended, such as the loss of the guard,
// doesn't change how it ended: while the lock is still ours, a period that is done is recorded as done.
func TestGuardGoneWithLeftovers(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *simHost)
		kind Kind
		at   Instant
	}{
		"stopped": {func(h *simHost) { h.guards.close(); time.AfterFunc(time.Minute, h.guards.open) }, Lost, 22600*time.Millisecond + enforceAfter + enforceAfter/10 + killPause},
		"killed":  {(*simHost).killGuard, Failed, 5900*time.Millisecond + killPause},
	} {
		for _, exit := range []int{0, 3} {
			for policy, outcome := range map[RestartPolicy]string{RestartNo: "exited", RestartAlways: map[Kind]string{Lost: "lost", Failed: "failed"}[c.kind]} {
				t.Run(fmt.Sprintf("%s, exit %d, policy %d", name, exit, policy), func(t *testing.T) {
					w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second, exit: exit, leaves: time.Minute, deaf: true}, func(c *Config) {
						c.Restart = Restart{Policy: policy, Delay: time.Second, Most: -1}
					}), func(w *world) {
						w.hosts[0].endAfterRun()
						w.until(5900 * time.Millisecond) // not in the instant of a proof
						c.do(w.hosts[0])
						w.until(90 * time.Second)
					})
					at := c.at
					if all := w.hosts[0].outcomes; len(all) > 0 && all[0].at == at-killPause {
						at = all[0].at // the pass that killed has seen the death itself
					}
					if o := w.hosts[0].outcome(t, 0, c.kind, at); o.Result.Outcome != outcome || outcome == "exited" && o.Result.Exit != exit {
						t.Errorf("%+v, want %s %d", o.Result, outcome, exit)
					}
				})
			}
		}
	}
}

// Nor does what is found beside that end after a suspend: what is seen first is chance.
func TestEndedBeforeItWasTold(t *testing.T) {
	for name, c := range map[string]struct {
		tweak func(*Config)
		do    func(w *world)
	}{
		"its time is over": {func(c *Config) { c.MaxRuntime = 6 * time.Second }, func(*world) {}},
		"an order":         {func(*Config) {}, (*world).stepDown},
	} {
		for _, exit := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s, exit %d", name, exit), func(t *testing.T) {
				for range 8 {
					w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second, exit: exit}, c.tweak), func(w *world) {
						w.hosts[0].endAfterRun()
						w.until(4500 * time.Millisecond)
						w.hosts[0].suspend(8*time.Second - w.now())
						w.until(7 * time.Second)
						go c.do(w)
						w.until(30 * time.Second)
					})
					o := w.hosts[0].outcome(t, 0, Ended, 8*time.Second)
					if o.TimedOut || o.Result.Outcome != "exited" || o.Result.Exit != exit {
						t.Fatalf("%+v, want exited %d", o.Result, exit)
					}
				}
			})
		}
	}
}

// A restart that can't be executed doesn't undo that the command ran before.
func TestRestartThatFails(t *testing.T) {
	w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second, exit: 1}, func(c *Config) {
		c.Restart = Restart{Policy: RestartOnFailure, Delay: time.Second, Most: -1}
	}), func(w *world) {
		w.hosts[0].endAfterRun()
		w.until(2 * time.Second)
		w.hosts[0].mu.Lock()
		w.hosts[0].missing = true
		w.hosts[0].mu.Unlock()
		w.until(10 * time.Second)
	})
	if o := w.hosts[0].outcome(t, 0, NotStarted, 6*time.Second); o.Result.Started.IsZero() || o.Result.Outcome != "failed" || o.Errno != syscall.ENOENT {
		t.Errorf("%+v, want a failed run", o.Result)
	}
}

// A stop signal ends whatever is done with the lock.
func TestStopWherever(t *testing.T) {
	hook := Command{Path: "/bin/hook"}
	for _, c := range []struct {
		name   string
		tweak  func(*Config)
		lives  []string
		kind   Kind
		ends   Instant
		signal syscall.Signal
	}{
		{"resting", resting, []string{"h1 0s-5s"}, Interrupted, 7 * time.Second, syscall.SIGTERM},
		{"resting, INT", resting, []string{"h1 0s-5s"}, Interrupted, 7 * time.Second, syscall.SIGINT},
		{"in the acquire hook", func(c *Config) { c.Hooks = Hooks{OnAcquire: hook, Timeout: time.Minute} }, []string{"h1 acquire 0s-8s"}, Interrupted, 8 * time.Second, syscall.SIGTERM},
		{"in the release hook", func(c *Config) { c.Hooks = Hooks{OnRelease: hook, Timeout: time.Minute} }, []string{"h1 0s-5s", "h1 release 5s-8s"}, Ended, 8 * time.Second, syscall.SIGTERM},
		{"in the minimum of holding", func(c *Config) { c.MinHold = time.Minute }, []string{"h1 0s-5s"}, Ended, 7 * time.Second, syscall.SIGTERM},
		{"splay", func(c *Config) { c.Splay = time.Minute }, nil, Interrupted, 7 * time.Second, syscall.SIGTERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := sceneOf(t, 1, func(w *world) {
				told(childLife{runs: 5 * time.Second, exit: 1}, c.tweak)(w)
				w.hosts[0].endAfterRun()
				w.hosts[0].hooks = map[string]childLife{"acquire": {dawdle: time.Second}, "release": {dawdle: time.Second}}
			}, func(w *world) {
				w.until(7 * time.Second)
				w.hosts[0].signal(c.signal)
				w.until(40 * time.Second)
			})
			w.lives(t, c.lives...)
			o := w.hosts[0].outcome(t, 0, c.kind, c.ends)
			switch {
			case c.kind == Interrupted && o.Signal != c.signal:
				t.Errorf("interrupted by %s, want %s", o.Signal, c.signal)
			case c.kind == Ended && (o.Result.Outcome != "exited" || o.Result.Exit != 1):
				t.Errorf("the record says %q %d, want the command's own end: exited 1", o.Result.Outcome, o.Result.Exit)
			}
			if n := len(w.model.Sessions()); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
	t.Run("arming", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{}, func(*Config) {}), func(w *world) {
			h := w.hosts[0]
			h.endAfterRun()
			h.net.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
				if r.Has("lock") {
					h.keeper.close() // before it sees the answer
					time.AfterFunc(3*time.Second, h.keeper.open)
				}
				if r.Has("check-session") && !r.Has("lock") {
					return consulmodel.Plan{Status: 500, Body: "No cluster leader"}
				}
				return consulmodel.Plan{}
			})
			w.until(5 * time.Second)
			h.signal(syscall.SIGTERM)
			w.until(10 * time.Second)
		})
		w.hosts[0].outcome(t, 0, Interrupted, 5*time.Second)
		if len(w.children) > 0 || len(w.model.Sessions()) > 0 {
			t.Errorf("%d children, %d sessions\n%s", len(w.children), len(w.model.Sessions()), strings.Join(w.trace, "\n"))
		}
	})
}

// A stop signal that comes while onlyone is about to contend again ends it, wherever it is seen.
func TestStopInsteadOfContendingAgain(t *testing.T) {
	wait := func(c *Config) { c.OnLostWait = true }
	t.Run("while the command of a lost lock ends", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{dawdle: 2 * time.Second}, wait), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(5 * time.Second)
			s, _ := w.model.Holder(simLockKey)
			w.model.DestroySession(s)
			w.until(6 * time.Second)
			w.hosts[0].signal(syscall.SIGTERM)
			w.until(2 * time.Minute)
		})
		w.hosts[0].outcome(t, 0, Lost, 7*time.Second)
	})
	t.Run("in the loss hook", func(t *testing.T) {
		w := sceneOf(t, 1, func(w *world) {
			told(childLife{}, func(c *Config) {
				wait(c)
				c.Hooks = Hooks{OnLoss: Command{Path: "/bin/hook"}, Timeout: time.Minute}
			})(w)
			w.hosts[0].endAfterRun()
		}, func(w *world) {
			w.until(5 * time.Second)
			s, _ := w.model.Holder(simLockKey)
			w.model.DestroySession(s)
			w.until(6 * time.Second)
			w.hosts[0].signal(syscall.SIGTERM)
			w.until(2 * time.Minute)
		})
		w.hosts[0].outcome(t, 0, Lost, 6*time.Second)
		w.lives(t, "h1 0s-5s", "h1 loss 5s-6s")
	})
	t.Run("in the release after an order", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{}, func(*Config) {}), func(w *world) {
			h := w.hosts[0]
			h.endAfterRun()
			w.until(5 * time.Second)
			h.net.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
				if r.Has("unlock") {
					return consulmodel.Plan{AnswerDelay: 1500 * time.Millisecond}
				}
				return consulmodel.Plan{}
			})
			w.stepDown()
			w.until(6 * time.Second)
			h.signal(syscall.SIGTERM)
			w.until(2 * time.Minute)
		})
		w.hosts[0].outcome(t, 0, HandedOver, 6500*time.Millisecond)
	})
}

func TestOrders(t *testing.T) {
	keep := func(*Config) {}
	life := childLife{dawdle: time.Second}
	queued := func(w *world) (n int) {
		for _, k := range w.model.Keys() {
			if strings.Contains(k.Key, "~queue/") && k.Session != "" {
				n++
			}
		}
		return n
	}
	t.Run("step-down: the next host, and again after 10 s", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, keep), func(w *world) {
			w.until(5 * time.Second)
			w.stepDown()
			w.until(16*time.Second - time.Millisecond)
			if n := queued(w); n != 1 { // the entry of the holder, who came by the queue
				t.Errorf("%d contenders, want none beside the holder", n)
			}
			w.until(16*time.Second + time.Millisecond)
			if n := queued(w); n != 2 {
				t.Errorf("%d contenders, want the one that stepped down again", n)
			}
			w.until(20 * time.Second)
			w.stepDown()
			w.until(22 * time.Second)
		})
		w.lives(t, "h1 0s-6s", "h2 6s-21s", "h1 21s-23s")
	})
	t.Run("step-down of nobody else: alone it starts again after 10 s", func(t *testing.T) {
		w := sceneOf(t, 1, told(life, keep), func(w *world) {
			w.until(5 * time.Second)
			w.stepDown()
			w.until(20 * time.Second)
		})
		w.lives(t, "h1 0s-6s", "h1 16s-21s")
	})
	t.Run("step-down, then a reload", func(t *testing.T) {
		w := sceneOf(t, 1, told(life, keep), func(w *world) {
			w.until(5 * time.Second)
			w.stepDown()
			w.until(10 * time.Second)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGHUP, Reload: true}
			w.until(20 * time.Second)
		})
		w.lives(t, "h1 0s-6s", "h1 16s-21s")
	})
	t.Run("step-down of another session is nothing", func(t *testing.T) {
		w := sceneOf(t, 1, told(life, keep), func(w *world) {
			w.until(5 * time.Second)
			w.model.PutKey("onlyone/"+simName+"/.step-down", `{"schema":1,"session":"5b1d1a1c-0000-0000-0000-000000000000"}`)
			w.until(20 * time.Second)
		})
		w.lives(t, "h1 0s-21s")
	})
	t.Run("an order in the first poll is seen by its end", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, keep), func(w *world) {
			w.until(time.Second)
			w.stepDown()
			w.until(5 * time.Second)
		})
		w.lives(t, "h1 0s-3s")
	})
	t.Run("no wait: ends after the order", func(t *testing.T) {
		w := sceneOf(t, 1, told(life, func(c *Config) { c.NoWait = true }), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(5 * time.Second)
			w.stepDown()
			w.until(40 * time.Second)
		})
		o := w.hosts[0].outcome(t, 0, HandedOver, 6*time.Second)
		if o.Order.Kind != StepDown || !strings.Contains(o.Order.Why, "test") {
			t.Errorf("order %+v", o.Order)
		}
	})
	t.Run("a deaf command has its stop timeout", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{deaf: true}, keep), func(w *world) {
			w.until(5 * time.Second)
			w.stepDown()
			w.until(40 * time.Second)
		})
		w.lives(t, "h1 0s-35s")
	})
	for _, long := range []time.Duration{4 * time.Second, 14 * time.Second, 20 * time.Second, 3 * time.Minute} {
		t.Run(fmt.Sprintf("pause for %s ends by itself", long), func(t *testing.T) {
			end := 5*time.Second + long
			w := sceneOf(t, 2, told(life, keep), func(w *world) {
				w.until(5 * time.Second)
				w.pauseFor(long)
				w.until(end + 3*time.Second)
			})
			if len(w.children) != 2 || w.children[0].ended != 6*time.Second || w.children[1].started < end || w.children[1].started > end+2*time.Second {
				t.Errorf("want the next child within 2 s of %s\n%s", end, strings.Join(w.trace, "\n"))
			}
		})
	}
	t.Run("pause, resumed", func(t *testing.T) {
		w := sceneOf(t, 2, told(life, keep), func(w *world) {
			w.until(5 * time.Second)
			w.pauseFor(time.Hour)
			w.until(50 * time.Second)
			w.model.DeleteKey("onlyone/" + simName + "/.paused")
			w.until(60 * time.Second)
		})
		w.lives(t, "h1 0s-6s", "h2 50s-1m1s")
	})
	t.Run("pause while resting", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{runs: 5 * time.Second}, resting), func(w *world) {
			w.until(9 * time.Second)
			w.pauseFor(time.Hour)
			w.until(2 * time.Minute)
		})
		if w.lives(t, "h1 0s-5s"); len(w.children) != 1 || w.unlocks[w.children[0].session] != 1 {
			t.Errorf("%d children\n%s", len(w.children), strings.Join(w.trace, "\n"))
		}
	})
}

func TestDrain(t *testing.T) {
	var drains chan Drain // of h1; made in the bubble
	drained := func(life childLife, f func(*Config)) func(w *world) {
		return func(w *world) {
			drains = make(chan Drain, 4)
			told(life, f)(w)
			again := w.hosts[0].tweak
			w.hosts[0].tweak = func(c *Config) { again(c); c.Drains = drains }
		}
	}
	keep := func(*Config) {}
	t.Run("stops, hands over, comes back", func(t *testing.T) {
		setup := drained(childLife{dawdle: time.Second}, keep)
		w := sceneOf(t, 2, setup, func(w *world) {
			w.until(5 * time.Second)
			drains <- Drain{On: true, Why: "reboot"}
			w.until(20 * time.Second)
			w.hosts[1].signal(syscall.SIGTERM)
			w.until(30 * time.Second)
			if s := len(w.model.Sessions()); s != 1 {
				t.Errorf("%d sessions, want the other host's only", s)
			}
			w.hosts[1].endAfterRun()
			w.hosts[1].signal(syscall.SIGTERM)
			w.until(40 * time.Second)
			drains <- Drain{}
			w.until(45 * time.Second)
		})
		if last := w.children[len(w.children)-1]; last.host != w.hosts[0] || last.started != 40*time.Second {
			t.Errorf("the last child started on %s at %s, want h1 at 40s\n%s", last.host.name, last.started, strings.Join(w.trace, "\n"))
		}
	})
	t.Run("finish lets it end", func(t *testing.T) {
		setup := drained(childLife{runs: 20 * time.Second}, keep)
		w := sceneOf(t, 2, setup, func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(5 * time.Second)
			drains <- Drain{On: true, Finish: true, Why: "reboot"}
			w.until(30 * time.Second)
		})
		w.lives(t, "h1 0s-20s", "h2 20s-30s")
		w.hosts[0].outcome(t, 0, Ended, 20*time.Second)
	})
	t.Run("finish begins no restart", func(t *testing.T) {
		setup := drained(childLife{runs: 10 * time.Second}, func(c *Config) {
			c.Restart = Restart{Policy: RestartAlways, Delay: time.Second, Most: -1}
		})
		w := sceneOf(t, 2, setup, func(w *world) {
			w.until(5 * time.Second)
			drains <- Drain{On: true, Finish: true, Why: "reboot"}
			w.until(15 * time.Second)
		})
		w.lives(t, "h1 0s-10s", "h2 10s-15s")
	})
	t.Run("no wait", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{}, func(c *Config) { c.NoWait, c.Drained = true, Drain{On: true, Why: "reboot"} }), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(time.Second)
		})
		if o := w.hosts[0].outcome(t, 0, NotAcquired, 0); !errors.Is(o.Err, ErrDrained) {
			t.Errorf("%v", o.Err)
		}
	})
	t.Run("stop while drained", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{}, func(c *Config) { c.Drained = Drain{On: true} }), func(w *world) {
			w.hosts[0].endAfterRun()
			w.until(5 * time.Second)
			w.hosts[0].signal(syscall.SIGTERM)
			w.until(6 * time.Second)
		})
		w.hosts[0].outcome(t, 0, Interrupted, 5*time.Second)
	})
	// The acquire that is given up may take two seconds to leave the queue; what comes meanwhile
	// must not make it forget why it is given up.
	t.Run("drained while leaving after the wait", func(t *testing.T) {
		setup := drained(childLife{}, func(c *Config) { c.Wait = 10 * time.Second })
		w := sceneOf(t, 2, func(w *world) {
			setup(w)
			w.hosts[0].tweak, w.hosts[1].tweak = w.hosts[1].tweak, w.hosts[0].tweak // h1 holds the lock
		}, func(w *world) {
			h := w.hosts[1]
			h.endAfterRun()
			w.until(10 * time.Second)
			h.net.SetFaults(drop)
			w.until(11 * time.Second)
			drains <- Drain{On: true, Why: "reboot"}
			w.until(2 * time.Minute)
		})
		if o := w.hosts[1].outcome(t, 0, NotAcquired, 12010*time.Millisecond); !errors.Is(o.Err, ErrWaitOver) {
			t.Errorf("%v, want %v", o.Err, ErrWaitOver)
		}
	})
}

func TestLimits(t *testing.T) {
	limit := func(c *Config) { c.MaxRuntime = 20 * time.Second }
	t.Run("max-runtime: TERM at T", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{dawdle: time.Second}, limit), func(w *world) { w.until(22 * time.Second) })
		w.lives(t, "h1 0s-21s")
		if o := w.hosts[0].outcome(t, 0, Ended, 21*time.Second); !o.TimedOut || o.Result.Exit != exitTimedOut || o.Result.Outcome != "timeout" {
			t.Errorf("%+v, want 124", o)
		}
	})
	t.Run("max-runtime: KILL at T + G", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{deaf: true}, limit), func(w *world) { w.until(25 * time.Second) })
		w.lives(t, "h1 0s-24s")
		if o := w.hosts[0].outcome(t, 0, Ended, 24*time.Second); !o.TimedOut || o.Result.Exit != exitKilled {
			t.Errorf("%+v, want 137", o)
		}
	})
	t.Run("max-runtime in an outage: the lease's end comes first", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{deaf: true}, func(c *Config) { c.MaxRuntime = 22 * time.Second }), func(w *world) {
			w.until(5 * time.Second)
			w.hosts[0].net.SetFaults(drop)
			w.until(30 * time.Second)
		})
		w.lives(t, "h1 0s-22.6s")
		w.hosts[0].outcome(t, 0, Lost, 22600*time.Millisecond+unheardRelease)
	})
	t.Run("min-hold", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{runs: 5 * time.Second, exit: 1}, func(c *Config) { c.MinHold = 30 * time.Second }), func(w *world) { w.until(31 * time.Second) })
		w.lives(t, "h1 0s-5s", "h2 30s-31s")
		if o := w.hosts[0].outcome(t, 0, Ended, 30*time.Second); o.Result.Exit != 1 || o.Result.Outcome != "exited" {
			t.Errorf("%+v, want exited 1", o.Result)
		}
	})
	t.Run("min-hold is over already", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{runs: 40 * time.Second}, func(c *Config) { c.MinHold = 30 * time.Second }), func(w *world) { w.until(41 * time.Second) })
		w.lives(t, "h1 0s-40s", "h2 40s-41s")
	})
	t.Run("a step-down in the minimum of holding", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{runs: 5 * time.Second}, func(c *Config) { c.MinHold = 30 * time.Second }), func(w *world) {
			w.until(10 * time.Second)
			w.stepDown()
			w.until(11 * time.Second)
		})
		w.lives(t, "h1 0s-5s", "h2 10s-11s")
		if o := w.hosts[0].outcome(t, 0, Ended, 10*time.Second); o.Result.Outcome != "exited" {
			t.Errorf("%+v, want its own end", o.Result)
		}
	})
	t.Run("start deadline", func(t *testing.T) {
		w := sceneOf(t, 2, told(childLife{}, func(c *Config) { c.StartBy = 10 * time.Second }), func(w *world) {
			w.hosts[1].endAfterRun()
			w.until(11 * time.Second)
		})
		if o := w.hosts[1].outcome(t, 0, NotAcquired, 10*time.Second); !errors.Is(o.Err, ErrTooLate) {
			t.Errorf("%v", o.Err)
		}
		w.lives(t, "h1 0s-11s")
	})
	t.Run("start deadline over in a hook", func(t *testing.T) {
		w := sceneOf(t, 1, func(w *world) {
			told(childLife{}, func(c *Config) {
				c.StartBy = 10 * time.Second
				c.Hooks = Hooks{OnAcquire: Command{Path: "/bin/hook"}, OnRelease: Command{Path: "/bin/hook"}, Timeout: time.Minute}
			})(w)
			w.hosts[0].endAfterRun()
			w.hosts[0].hooks = map[string]childLife{"acquire": {runs: 11 * time.Second}, "release": {runs: time.Second}}
		}, func(w *world) { w.until(20 * time.Second) })
		if o := w.hosts[0].outcome(t, 0, NotAcquired, 12*time.Second); !errors.Is(o.Err, ErrTooLate) {
			t.Errorf("%v", o.Err)
		}
		w.lives(t, "h1 acquire 0s-11s", "h1 release 11s-12s") // what the one has done the other undoes
	})
	t.Run("splay", func(t *testing.T) {
		w := sceneOf(t, 1, told(childLife{}, func(c *Config) { c.Splay = 7 * time.Second }), func(w *world) { w.until(10 * time.Second) })
		w.lives(t, "h1 7s-10s")
	})
}

func TestHooks(t *testing.T) {
	hook := Command{Path: "/bin/hook"}
	t.Run("around the command, the lock held", func(t *testing.T) {
		w := sceneOf(t, 2, func(w *world) {
			told(childLife{runs: 5 * time.Second}, func(c *Config) { c.Hooks = Hooks{OnAcquire: hook, OnRelease: hook, Fence: hook, Timeout: time.Minute} })(w)
			for _, h := range w.hosts {
				h.hooks = map[string]childLife{"acquire": {runs: time.Second, exit: 1}, "release": {runs: 2 * time.Second, exit: 1}}
			}
		}, func(w *world) { w.until(9 * time.Second) })
		w.lives(t, "h1 acquire 0s-1s", "h1 1s-6s", "h1 release 6s-8s", "h2 acquire 8s-9s")
	})
	t.Run("a deaf one is killed at its timeout", func(t *testing.T) {
		w := sceneOf(t, 1, func(w *world) {
			told(childLife{}, func(c *Config) { c.Hooks = Hooks{OnAcquire: hook, Timeout: 5 * time.Second} })(w)
			w.hosts[0].hooks = map[string]childLife{"acquire": {deaf: true}}
		}, func(w *world) { w.until(10 * time.Second) })
		w.lives(t, "h1 acquire 0s-9s", "h1 9s-10s")
	})
	t.Run("the lease ends it sooner", func(t *testing.T) {
		w := sceneOf(t, 1, func(w *world) {
			told(childLife{}, func(c *Config) { c.Hooks = Hooks{OnAcquire: hook, OnLoss: hook, Timeout: time.Minute} })(w)
			w.hosts[0].endAfterRun()
			w.hosts[0].hooks = map[string]childLife{"acquire": {deaf: true}, "loss": {runs: time.Second}}
		}, func(w *world) {
			w.until(5 * time.Second)
			w.hosts[0].net.SetFaults(drop)
			w.until(40 * time.Second)
		})
		w.hosts[0].outcome(t, 0, Lost, 23600*time.Millisecond+unheardRelease)
		w.lives(t, "h1 acquire 0s-22.6s", "h1 loss 27.1s-28.1s")
	})
	t.Run("on-loss comes after the command is dead, and is bounded", func(t *testing.T) {
		w := sceneOf(t, 1, func(w *world) {
			told(childLife{deaf: true}, func(c *Config) { c.Hooks = Hooks{OnLoss: hook, Timeout: 5 * time.Second} })(w)
			w.hosts[0].endAfterRun()
			w.hosts[0].hooks = map[string]childLife{"loss": {deaf: true}}
		}, func(w *world) {
			w.until(5 * time.Second)
			s, _ := w.model.Holder(simLockKey)
			w.model.DestroySession(s)
			w.until(40 * time.Second)
		})
		w.lives(t, "h1 0s-9s", "h1 loss 9s-18s")
		w.hosts[0].outcome(t, 0, Lost, 18*time.Second)
	})
}

// Nothing is started before a holder that didn't release is fenced; and who doesn't fence it
// doesn't pass the lock on as a clean one.
func TestFence(t *testing.T) {
	hook := Command{Path: "/bin/fence"}
	fenced := func(fences ...childLife) func(w *world) {
		return func(w *world) {
			told(childLife{}, func(c *Config) { c.Hooks = Hooks{Fence: hook, Timeout: 10 * time.Second} })(w)
			for i, h := range w.hosts {
				h.hooks = map[string]childLife{"fence": fences[i]}
			}
			w.hosts[0].endAfterRun()
		}
	}
	// lose has h1's session end at 5 s: h2 can have the lock at 25 s.
	lose := func(w *world) {
		w.until(5 * time.Second)
		s, _ := w.model.Holder(simLockKey)
		w.model.DestroySession(s)
	}
	started := func(t *testing.T, w *world) {
		t.Helper()
		clean := false
		for _, c := range w.children[1:] {
			if c.hook == "fence" && c.gone && c.status == 0 {
				clean = true
			}
			if c.hook == "" && !clean {
				t.Errorf("%s started a child at %s: the last holder wasn't fenced\n%s", c.host.name, c.started, strings.Join(w.trace, "\n"))
			}
		}
	}
	t.Run("good", func(t *testing.T) {
		w := sceneOf(t, 2, fenced(childLife{}, childLife{runs: time.Second}), func(w *world) {
			lose(w)
			w.until(40 * time.Second)
		})
		started(t, w)
		if c := w.children[2]; c.host != w.hosts[1] || c.hook != "" || c.started != w.children[1].ended {
			t.Errorf("the next child started on %s at %s\n%s", c.host.name, c.started, strings.Join(w.trace, "\n"))
		}
	})
	t.Run("after a clean release there is none", func(t *testing.T) {
		w := sceneOf(t, 2, fenced(childLife{}, childLife{runs: time.Second}), func(w *world) {
			w.until(5 * time.Second)
			w.hosts[0].signal(syscall.SIGTERM)
			w.until(7 * time.Second)
		})
		w.lives(t, "h1 0s-5s", "h2 5s-7s")
	})
	for name, bad := range map[string]childLife{"fails": {runs: time.Second, exit: 1}, "hangs": {deaf: true}} {
		t.Run(name, func(t *testing.T) {
			w := sceneOf(t, 3, fenced(childLife{}, bad, childLife{runs: 2 * time.Second}), func(w *world) {
				w.hosts[1].endAfterRun()
				lose(w)
				w.until(60 * time.Second)
			})
			started(t, w)
			if o := w.hosts[1].outcomes; len(o) != 1 || o[0].Kind != NotFenced {
				t.Errorf("h2: %+v, want one run that wasn't fenced", o)
			}
			if last := w.children[len(w.children)-1]; last.host != w.hosts[2] || last.hook != "" {
				t.Errorf("h3 fenced the last holder and has started nothing\n%s", strings.Join(w.trace, "\n"))
			}
		})
	}
	t.Run("keeper killed while it fences", func(t *testing.T) {
		w := sceneOf(t, 3, fenced(childLife{}, childLife{}, childLife{runs: 2 * time.Second}), func(w *world) {
			w.hosts[1].endAfterRun()
			lose(w)
			w.until(28 * time.Second)
			w.hosts[1].killKeeper(time.Hour)
			w.until(60 * time.Second)
			w.hosts[1].keeper.open()
		})
		started(t, w)
		if last := w.children[len(w.children)-1]; last.host != w.hosts[2] || last.hook != "" {
			t.Errorf("h3 fenced the last holder and has started nothing\n%s", strings.Join(w.trace, "\n"))
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		w := sceneOf(t, 3, fenced(childLife{}, childLife{}, childLife{runs: 2 * time.Second}), func(w *world) {
			w.hosts[1].endAfterRun()
			lose(w)
			w.until(28 * time.Second)
			w.hosts[1].signal(syscall.SIGTERM)
			w.until(60 * time.Second)
		})
		started(t, w)
	})
}

// Whoever releases for a killed keeper writes down the end that was seen, by the guard itself or
// by the one before: a job that is done isn't done again. Each incarnation has a guard of its own.
func TestGuardRecordsTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		hooks  Hooks
		life   childLife
		policy RestartPolicy
		at     Instant
		want   string
	}{
		"while what is left behind is ended":              {Hooks{}, childLife{runs: 5 * time.Second, leaves: 2 * time.Second}, RestartNo, 6 * time.Second, "exited"},
		"that, after an acquire hook":                     {Hooks{OnAcquire: Command{Path: "/bin/hook"}}, childLife{runs: 5 * time.Second, leaves: 2 * time.Second}, RestartNo, 7 * time.Second, "exited"},
		"in the release hook":                             {Hooks{OnRelease: Command{Path: "/bin/hook"}}, childLife{runs: 5 * time.Second}, RestartNo, 5500 * time.Millisecond, "exited"},
		"before the end":                                  {Hooks{OnAcquire: Command{Path: "/bin/hook"}}, childLife{runs: 5 * time.Second}, RestartNo, 4 * time.Second, "failed"},
		"after a restart, while what is left behind ends": {Hooks{}, childLife{runs: 5 * time.Second, leaves: 2 * time.Second}, RestartOnFailure, 6 * time.Second, "exited"},
		"in the second run":                               {Hooks{}, childLife{runs: 5 * time.Second, exit: 1}, RestartOnFailure, 8 * time.Second, "failed"},
		"while it rests between two starts":               {Hooks{}, childLife{runs: 5 * time.Second, exit: 1}, RestartOnFailure, 5500 * time.Millisecond, "failed"},
		"an end that isn't for good, in the acquire hook": {Hooks{OnAcquire: Command{Path: "/bin/hook"}}, childLife{runs: 5 * time.Second, exit: 1, leaves: 2 * time.Second}, RestartOnFailure, 7 * time.Second, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := sceneOf(t, 1, func(w *world) {
				told(c.life, func(cfg *Config) {
					cfg.Hooks, cfg.Hooks.Timeout = c.hooks, time.Minute
					cfg.Restart = Restart{Policy: c.policy, Delay: time.Second, Most: -1}
				})(w)
				w.hosts[0].hooks = map[string]childLife{"acquire": {runs: time.Second}, "release": {runs: time.Second}}
			}, func(w *world) {
				w.until(c.at)
				w.hosts[0].killKeeper(time.Hour)
				w.until(20 * time.Second)
			})
			kv, _ := w.model.Key("onlyone/" + simName + "/.runs")
			var r consulsession.Runs
			if err := json.Unmarshal(kv.Value, &r); err != nil || len(r.Runs) != 1 || r.Runs[0].Outcome != c.want || r.Runs[0].Started == "" || r.Runs[0].Ended == "" {
				t.Errorf("the record of runs is %s (%v), want one that %s\n%s", kv.Value, err, c.want, strings.Join(w.trace, "\n"))
			}
		})
	}
}

// A restart that couldn't be executed is no end of the command with 0.
func TestGuardRecordsARestartThatFails(t *testing.T) {
	w := sceneOf(t, 1, func(w *world) {
		told(childLife{runs: 5 * time.Second, exit: 1}, func(c *Config) {
			c.Hooks = Hooks{OnRelease: Command{Path: "/bin/hook"}, Timeout: time.Minute}
			c.Restart = Restart{Policy: RestartOnFailure, Delay: time.Second, Most: -1}
		})(w)
		w.hosts[0].hooks = map[string]childLife{"release": {runs: 3 * time.Second}}
	}, func(w *world) {
		w.until(2 * time.Second)
		w.hosts[0].mu.Lock()
		w.hosts[0].missing = true
		w.hosts[0].mu.Unlock()
		w.until(7 * time.Second)
		w.hosts[0].killKeeper(time.Hour)
		w.until(20 * time.Second)
	})
	kv, _ := w.model.Key("onlyone/" + simName + "/.runs")
	var r consulsession.Runs
	if err := json.Unmarshal(kv.Value, &r); err != nil || len(r.Runs) != 1 || r.Runs[0].Outcome != "failed" {
		t.Errorf("the record of runs is %s (%v), want one that failed\n%s", kv.Value, err, strings.Join(w.trace, "\n"))
	}
}

func TestOnLostWait(t *testing.T) {
	w := sceneOf(t, 1, told(childLife{}, func(c *Config) { c.OnLostWait = true }), func(w *world) {
		w.until(5 * time.Second)
		s, _ := w.model.Holder(simLockKey)
		w.model.DestroySession(s)
		w.until(30 * time.Second)
	})
	if len(w.children) != 2 || w.children[0].ended != 5*time.Second || w.children[1].started < 25*time.Second || w.children[1].started > 26*time.Second {
		t.Errorf("want children from 0s to 5s and from 25s on\n%s", strings.Join(w.trace, "\n"))
	}
	if n := len(w.hosts[0].outcomes); n != 1 {
		t.Errorf("%d runs, want one that contended twice", n)
	}
}
