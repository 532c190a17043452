package supervisor

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// The tests in this file assert instants. Defaults: D = 14.6 s, G = 4 s, P = 2 s. A first
// check is sent at 2 s, the next at 4 s and so on; the network takes no time.

// scene plays one world in a bubble: script runs beside the hosts, which then are stopped.
func scene(t *testing.T, hosts int, life childLife, script func(w *world)) *world {
	t.Helper()
	return sceneOf(t, hosts, func(w *world) {
		for _, h := range w.hosts {
			h.life = life
		}
	}, script)
}

// sceneOf is scene with hosts that setup makes.
func sceneOf(t *testing.T, hosts int, setup, script func(w *world)) *world {
	t.Helper()
	var w *world
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(1, hosts)
		setup(w)
		var wg sync.WaitGroup
		for i, h := range w.hosts {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				h.loop()
			})
		}
		script(w)
		w.shutdown(&wg)
	})
	if len(w.violations) > 0 {
		t.Errorf("%s\n%s", strings.Join(w.violations, "\n"), strings.Join(w.trace, "\n"))
	}
	return w
}

// wantLife asserts when the n-th child lived.
func (w *world) wantLife(t *testing.T, n int, started, ended Instant) {
	t.Helper()
	if n >= len(w.children) {
		t.Fatalf("there were %d children, want number %d\n%s", len(w.children), n+1, strings.Join(w.trace, "\n"))
	}
	if c := w.children[n]; c.started != started || c.ended != ended {
		t.Errorf("child %d lived from %s to %s, want %s to %s\n%s", n+1, c.started, c.ended, started, ended, strings.Join(w.trace, "\n"))
	}
}

func at(d time.Duration) { time.Sleep(d) }

func drop(*consulmodel.Request) consulmodel.Plan    { return consulmodel.Plan{DropRequest: true} }
func unheard(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{DropAnswer: true} }

func status(code int, body string) consulmodel.Faults {
	return func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Status: code, Body: body} }
}

// Silence of every kind ends the child at D after the last proof, a deaf one at D + G,
// counted from before the proof's request.
func TestSilenceEndsTheChildAtTheDeadline(t *testing.T) {
	for name, plan := range map[string]consulmodel.Faults{
		"requests lost":      drop,
		"answers lost":       unheard, // https://github.com/hashicorp/consul/issues/18271
		"500":                status(500, "No cluster leader"),
		"403":                status(403, "ACL not found"),
		"429":                status(429, "too many concurrent connections"),
		"nonsense":           status(200, "<html>it works</html>"),
		"permission denied":  status(409, `{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"}]}`),
		"connection refused": func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Refuse: syscall.ECONNREFUSED} },
		"answers 3 s late":   func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{AnswerDelay: 3 * time.Second} },
	} {
		for _, isDeaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deaf=%v", name, isDeaf), func(t *testing.T) {
				w := scene(t, 1, childLife{deaf: isDeaf}, func(w *world) {
					at(5 * time.Second)
					w.hosts[0].net.SetFaults(plan)
					at(30 * time.Second)
				})
				end := 18600 * time.Millisecond // the last proof was sent at 4 s
				if isDeaf {
					end += 4 * time.Second
				}
				w.wantLife(t, 0, 0, end)
				if k := w.hosts[0].outcomes[0].Kind; k != Lost {
					t.Errorf("outcome %d, want Lost", k)
				}
			})
		}
	}
}

// A late answer counts from its request.
func TestLateAnswerCountsFromItsRequest(t *testing.T) {
	w := scene(t, 1, childLife{}, func(w *world) {
		at(3 * time.Second)
		n := 0
		w.hosts[0].net.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			if n++; n == 1 { // the check that is sent at 4 s
				return consulmodel.Plan{AnswerDelay: 1900 * time.Millisecond}
			}
			return consulmodel.Plan{DropRequest: true}
		})
		at(30 * time.Second)
	})
	w.wantLife(t, 0, 0, 18600*time.Millisecond)
}

// What proves a loss ends the child sooner: at once where somebody else may hold the lock
// already, with TERM and G where the lock-delay keeps others off.
func TestProofOfLoss(t *testing.T) {
	session := func(w *world) string { s, _ := w.model.Holder(simLockKey); return s }
	for _, c := range []struct {
		name string
		do   func(w *world)
		end  Instant // of a deaf child
	}{
		{"session destroyed", func(w *world) { w.model.DestroySession(session(w)) }, 9 * time.Second},
		{"stale timer", func(w *world) { w.model.StaleTimer(session(w)) }, 9 * time.Second},
		{"key deleted", func(w *world) { w.mu.Lock(); w.tokenOnly = true; w.mu.Unlock(); w.model.DeleteKey(simLockKey) }, 5 * time.Second},
		{"unlocked by somebody", func(w *world) { w.model.Unlock(simLockKey, session(w)) }, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctestScene := func() *world {
				var w *world
				synctest.Test(t, func(t *testing.T) {
					w = newWorld(1, 1)
					w.hosts[0].life = childLife{deaf: true}
					var wg sync.WaitGroup
					wg.Go(w.hosts[0].loop)
					at(5 * time.Second)
					c.do(w)
					at(6 * time.Second)
					w.shutdown(&wg)
				})
				return w
			}
			w := synctestScene()
			w.wantLife(t, 0, 0, c.end)
			if k := w.hosts[0].outcomes[0].Kind; k != Lost {
				t.Errorf("outcome %d, want Lost", k)
			}
		})
	}
}

// A write on the held key takes its record away but not the lock.
func TestWriteOnTheKeyMovesNothing(t *testing.T) {
	w := scene(t, 2, childLife{}, func(w *world) {
		at(5 * time.Second)
		w.model.PutKey(simLockKey, "an operator's note")
		at(60 * time.Second)
	})
	w.wantLife(t, 0, 0, 65*time.Second)
}

// An election of default length, a frozen server and a lost minute of a standby move nothing.
func TestShortOutageMovesNothing(t *testing.T) {
	for name, outage := range map[string]func(w *world){
		"election of 12.8 s": func(w *world) { w.model.LoseLeader(); at(12800 * time.Millisecond); w.model.ElectLeader() },
		"frozen for 12 s":    func(w *world) { w.model.Freeze(); at(12 * time.Second); w.model.Thaw() },
		"agent gone for 13 s": func(w *world) {
			for _, h := range w.hosts {
				h.net.SetFaults(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Refuse: syscall.ECONNREFUSED} })
			}
			at(13 * time.Second)
			for _, h := range w.hosts {
				h.net.SetFaults(nil)
			}
		},
		// D less one attempt: a check that was sent in the last moment of the outage is lost, too.
		"answers lost for 11 s": func(w *world) { w.hosts[0].during(11*time.Second, unheard) },
	} {
		t.Run(name, func(t *testing.T) {
			w := scene(t, 2, childLife{}, func(w *world) {
				at(5 * time.Second)
				outage(w)
				at(60 * time.Second)
			})
			if len(w.children) != 2 { // the second one starts when the hosts are stopped one by one
				if len(w.children) != 1 {
					t.Errorf("%d children, want the first one to live on\n%s", len(w.children), strings.Join(w.trace, "\n"))
				}
			}
			if c := w.children[0]; c.ended < 70*time.Second {
				t.Errorf("the child was moved at %s\n%s", c.ended, strings.Join(w.trace, "\n"))
			}
		})
	}
}

// Guard and keeper each hold the deadlines by themselves.
func TestTwoEnforcers(t *testing.T) {
	t.Run("keeper stopped: the guard kills at D + G", func(t *testing.T) {
		w := scene(t, 2, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].keeper.close()
			at(60 * time.Second)
			w.hosts[0].keeper.open()
			at(time.Second)
		})
		w.wantLife(t, 0, 0, 22600*time.Millisecond)
	})
	t.Run("guard stopped: no acknowledgement, so the keeper kills", func(t *testing.T) {
		w := scene(t, 2, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].guards.close()
			at(60 * time.Second)
			w.hosts[0].guards.open()
			at(time.Second)
		})
		w.wantLife(t, 0, 0, 22600*time.Millisecond+enforceAfter+enforceAfter/10)
	})
	t.Run("guard killed: the keeper kills at once and releases", func(t *testing.T) {
		w := scene(t, 2, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].killGuard()
			at(time.Second)
			w.hosts[0].mu.Lock()
			w.hosts[0].stopped = true
			w.hosts[0].mu.Unlock()
			at(10 * time.Second)
		})
		w.wantLife(t, 0, 0, 5*time.Second)
		if c := w.children[1]; c.host != w.hosts[1] || c.started > 5*time.Second+2*killPause {
			t.Errorf("the next child started on %s at %s, want h2 at 5s", c.host.name, c.started)
		}
	})
	t.Run("keeper killed: the guard stops the child, releases, the next starts", func(t *testing.T) {
		w := scene(t, 2, childLife{dawdle: 100 * time.Millisecond}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].killKeeper(20 * time.Second)
			at(15 * time.Second)
		})
		w.wantLife(t, 0, 0, 5100*time.Millisecond)
		if c := w.children[1]; c.host != w.hosts[1] || c.started != 5100*time.Millisecond {
			t.Errorf("the next child started on %s at %s, want h2 at 5.1s", c.host.name, c.started)
		}
	})
	t.Run("keeper killed, Consul silent: the guard is gone by t + D + G + K", func(t *testing.T) {
		w := scene(t, 1, childLife{}, func(w *world) {
			at(5 * time.Second)
			h := w.hosts[0]
			h.net.SetFaults(drop)
			h.killKeeper(60 * time.Second)
			g := h.guard
			select {
			case <-g.over:
			case <-time.After(19600*time.Millisecond - time.Second):
				t.Errorf("the guard is still there at %s", w.now())
			}
			at(time.Second)
		})
		w.wantLife(t, 0, 0, 5*time.Second)
	})
}

// After a suspend over the deadline the child is killed before anything is asked or believed.
func TestSuspendOverTheDeadlineKillsFirst(t *testing.T) {
	const resume = 55 * time.Second
	after := 0
	w := scene(t, 1, childLife{deaf: true}, func(w *world) {
		at(5 * time.Second)
		h := w.hosts[0]
		h.net.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			if w.now() >= resume && (len(r.Ops) == 1 && r.Ops[0].Verb == "check-session" || r.Endpoint == consulmodel.SessionRenew) {
				after++
			}
			return consulmodel.Plan{}
		})
		h.suspend(resume - w.now())
		at(100 * time.Millisecond)
	})
	w.wantLife(t, 0, 0, resume)
	if after > 0 {
		t.Errorf("%d checks or renewals were sent after the resume", after)
	}
}

// An orderly stop keeps the lease all the while; a second signal kills at once.
func TestOrderlyStop(t *testing.T) {
	t.Run("deaf child: SIGKILL after --stop-timeout, the lease kept", func(t *testing.T) {
		w := scene(t, 2, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGTERM}
			at(31 * time.Second)
		})
		w.wantLife(t, 0, 0, 35*time.Second)
		if o := w.hosts[0].outcomes[0]; o.Kind != Ended || o.Status.Signal() != syscall.SIGKILL {
			t.Errorf("outcome %+v, want the child's death by SIGKILL", o)
		}
		if c := w.children[1]; c.started != 35*time.Second {
			t.Errorf("the next child started at %s, want 35s", c.started)
		}
	})
	t.Run("second signal", func(t *testing.T) {
		w := scene(t, 1, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGTERM}
			at(time.Second)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGINT}
			at(time.Second)
		})
		w.wantLife(t, 0, 0, 6*time.Second)
	})
	t.Run("outage during the stop: the lease's end comes first", func(t *testing.T) {
		w := scene(t, 1, childLife{deaf: true}, func(w *world) {
			at(5 * time.Second)
			w.hosts[0].net.SetFaults(drop)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGTERM}
			at(31 * time.Second)
		})
		w.wantLife(t, 0, 0, 22600*time.Millisecond)
	})
}

// Ctrl-C reaches the command and onlyone at once. When the command is gone before onlyone
// looks at its own copy, that one must not cut the release short: the next host would wait
// for the session to end. (Seen in a terminal: "cannot release the lock: context canceled".)
func TestSignalThatEndedTheCommandDoesNotCutTheRelease(t *testing.T) {
	w := scene(t, 2, childLife{runs: 5 * time.Second}, func(w *world) {
		h := w.hosts[0]
		at(4500 * time.Millisecond)
		h.net.SetFaults(func(*consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{AnswerDelay: 20 * time.Millisecond}
		})
		at(510 * time.Millisecond) // the child has ended at 5 s: the release is under way
		h.signals <- Signal{Signal: syscall.SIGINT, FromTerminal: true}
		at(time.Second)
	})
	w.wantLife(t, 0, 0, 5*time.Second)
	if n := len(w.model.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// An acquire whose answer is older than a poll is proven again before the start, and one
// whose keeper slept over it never starts anything.
func TestLateAcquire(t *testing.T) {
	w := scene(t, 1, childLife{}, func(w *world) {
		h := w.hosts[0]
		h.net.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("lock") {
				h.keeper.close() // before it sees the answer
				time.AfterFunc(40*time.Second, h.keeper.open)
			}
			return consulmodel.Plan{}
		})
		at(39 * time.Second)
		h.net.SetFaults(nil)
		at(30 * time.Second)
	})
	for _, c := range w.children {
		if c.token == "12" {
			t.Errorf("a child was started on an acquire that was 40 s old\n%s", strings.Join(w.trace, "\n"))
		}
	}
}

// The command gets one stop signal, whoever asks first and however often: a second one
// ends many programs at once.
func TestOneStopSignal(t *testing.T) {
	for name, script := range map[string]func(w *world){
		"the lease ends": func(w *world) { w.hosts[0].net.SetFaults(drop) },
		"the session ends": func(w *world) {
			s, _ := w.model.Holder(simLockKey)
			w.model.DestroySession(s)
		},
		"a stop, and then the lease ends": func(w *world) {
			w.hosts[0].net.SetFaults(drop)
			w.hosts[0].signals <- Signal{Signal: syscall.SIGTERM}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := scene(t, 1, childLife{deaf: true}, func(w *world) {
				at(5 * time.Second)
				script(w)
				at(30 * time.Second)
			})
			if n := w.children[0].terms; n != 1 {
				t.Errorf("%d stop signals, want 1", n)
			}
		})
	}
}
