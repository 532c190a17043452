package supervisor

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

var (
	simFor   = flag.Duration("sim.for", 3*time.Second, "how long to simulate")
	simSeed  = flag.Uint64("sim.seed", 0, "simulate this one schedule and print it")
	simFirst = flag.Uint64("sim.first", 1, "the first seed")
	simKnobs = flag.Int("sim.knobs", 10_000, "schedules to try for each broken rule, at most")
)

// A fault is one thing that goes wrong in a schedule.
type fault struct {
	at   time.Duration
	kind faultKind
	host int
	long time.Duration
}

type faultKind int

const (
	netDropRequests  faultKind = iota // requests of a host are lost for a while
	netDropAnswers                    // they are carried out, the answers are lost
	netLateAnswers                    // answers come up to 60 s late
	netLateRequests                   // requests arrive up to 60 s late
	netErrors                         // the agent answers 500
	netRefused                        // the agent is gone
	consulNoLeader                    // no leader for up to 13 s
	consulStaleTimer                  // the holder's session is ended though it was renewed
	consulDestroy                     // an operator destroys the holder's session
	consulFreeze                      // all requests hang, then all are carried out
	keeperPause                       // SIGSTOP, later SIGCONT
	keeperKill
	guardPause
	guardKill
	hostSuspend
	stopSignal  // SIGTERM to onlyone
	staleLeader // a deposed leader answers renewals and watches from memory, and nothing else
	ambush      // the session ends just after a proof whose answer is late; then silence or a stop
	stepDown    // an operator's orders
	pauseOrder  // for a while, and taken back or not
	endRace     // the keeper is killed when the command has just ended
	keyDeleted  // only the token covers it
	delaysLost  // only the token covers it
)

var faultNames = []string{"requests lost", "answers lost", "answers late", "requests late", "500s", "agent gone", "no leader",
	"stale timer", "session destroyed", "Consul frozen", "keeper stopped", "keeper killed", "guard stopped", "guard killed",
	"host suspended", "SIGTERM", "stale leader", "ambush", "step-down", "pause", "keeper killed at the end", "key deleted", "lock-delays forgotten"}

func (f fault) String() string {
	return fmt.Sprintf("%7.3fs  %s on h%d for %s", f.at.Seconds(), faultNames[f.kind], f.host+1, f.long)
}

// schedule is all that a seed decides.
type schedule struct {
	seed   uint64
	hosts  int
	lives  []childLife
	faults []fault

	copies int
	period time.Duration
	retry  consulsession.Retry
	skews  []time.Duration // of the wall clocks
	what   extras
}

// extras are what all hosts are told beyond the defaults.
type extras struct {
	restart            Restart
	minHold, maxRun    time.Duration
	onLostWait, hooked bool
	hooks              map[string]childLife
}

func (e extras) tell(c *Config) {
	c.Restart, c.MinHold, c.MaxRuntime, c.OnLostWait = e.restart, e.minHold, e.maxRun, e.onLostWait
	if e.hooked {
		hook := Command{Path: "/bin/hook"}
		c.Hooks = Hooks{Fence: hook, OnAcquire: hook, OnRelease: hook, OnLoss: hook, Timeout: 3 * time.Second}
	}
}

// faultTime is how long faults are begun; calm is what comes after, in which somebody must run.
const (
	faultTime = 60 * time.Second
	longest   = 45 * time.Second // that one fault lasts
	calm      = 70 * time.Second // more than 2 x TTL + lease + what is left of a stop
)

func (s schedule) String() string {
	var b strings.Builder
	for i, l := range s.lives {
		fmt.Fprintf(&b, "  h%d: %+v, clock %s\n", i+1, l, s.skews[i])
	}
	fmt.Fprintf(&b, "  %d copies, period %s %s, %+v\n", s.copies, s.period, s.retry, s.what)
	for _, f := range s.faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

func newSchedule(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 0xfa17))
	s := schedule{seed: seed, hosts: 2 + r.IntN(2)}
	for range s.hosts {
		l := childLife{killLag: time.Duration(r.IntN(800)) * time.Millisecond, dawdle: time.Duration(r.IntN(6000)) * time.Millisecond, deaf: r.IntN(2) == 0}
		if r.IntN(3) > 0 {
			l.runs = time.Duration(1+r.IntN(40_000)) * time.Millisecond
		}
		s.lives = append(s.lives, l)
	}
	s.vary(rand.New(rand.NewPCG(seed, 0x0a11)))
	tokenOnly := r.IntN(12) == 0 // rarely: these weaken what is checked
	for n := 1 + r.IntN(6); n > 0; n-- {
		kind := faultKind(r.IntN(int(keyDeleted)))
		switch r.IntN(8) { // the schedules that matter most, more often
		case 0, 1:
			kind = ambush
		case 2:
			kind = staleLeader
		case 3:
			if s.period > 0 {
				kind = endRace
			}
		}
		if tokenOnly && r.IntN(2) == 0 {
			kind = keyDeleted + faultKind(r.IntN(2))
		}
		f := fault{at: time.Duration(r.Int64N(int64(faultTime))), kind: kind, host: r.IntN(s.hosts)}
		f.long = time.Duration(r.Int64N(int64(longest))) / time.Duration(1+r.IntN(4))
		if kind == consulNoLeader {
			f.long = time.Duration(r.Int64N(int64(13 * time.Second)))
		}
		if kind == staleLeader {
			f.long = longest
		}
		if kind == consulFreeze {
			f.long /= 2
		}
		s.faults = append(s.faults, f)
	}
	return s
}

// vary makes of some schedules those of periods, of copies, and of what is done beside the command.
func (s *schedule) vary(r *rand.Rand) {
	some := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	switch r.IntN(4) {
	case 0:
		s.copies = 2 + r.IntN(2)
	case 1:
		s.period = []time.Duration{20 * time.Second, 40 * time.Second, 10 * time.Minute}[r.IntN(3)]
		if r.IntN(4) == 0 {
			s.copies = 2
		}
	}
	for s.copies > 0 && s.hosts <= s.copies {
		s.hosts++
		s.lives = append(s.lives, s.lives[0])
	}
	for i := range s.hosts {
		s.skews = append(s.skews, some(10*time.Second)-5*time.Second)
		switch l := &s.lives[i]; {
		case s.period > 0:
			l.runs, l.dawdle = max(l.runs, time.Millisecond)%(10*time.Second)+time.Millisecond, l.dawdle/4
		case s.copies > 0 && l.runs > 0:
			l.runs += 5 * time.Second
		}
		if r.IntN(4) == 0 {
			s.lives[i].exit = 1
		}
	}
	if r.IntN(3) == 0 {
		s.what.restart = Restart{Policy: RestartPolicy(1 + r.IntN(2)), Delay: time.Second + some(4*time.Second), Most: r.IntN(3)}
		if s.period > 0 {
			s.what.restart = Restart{Policy: RestartOnFailure, Delay: time.Second + some(3*time.Second), Most: 1}
		}
	}
	if r.IntN(4) == 0 {
		s.what.hooked = true
		s.what.hooks = map[string]childLife{}
		for _, name := range []string{"fence", "acquire", "release", "loss"} {
			l := childLife{runs: time.Millisecond + some(4*time.Second), exit: r.IntN(2), deaf: r.IntN(4) == 0, killLag: some(800 * time.Millisecond)}
			if name == "fence" {
				l.runs, l.exit = l.runs/2, 0
			}
			s.what.hooks[name] = l
		}
	}
	s.what.onLostWait = r.IntN(3) == 0
	if r.IntN(8) == 0 && s.period == 0 {
		s.what.minHold = some(30 * time.Second)
	}
	if r.IntN(8) == 0 {
		s.what.maxRun = time.Second + some(30*time.Second)
	}
	if r.IntN(4) == 0 {
		s.lives[0].leaves = some(6 * time.Second)
	}
	s.retry = []consulsession.Retry{consulsession.OnCrash, consulsession.OnCrash, consulsession.OnFailure, consulsession.Never}[r.IntN(4)]
}

// run plays the schedule and returns the world.
func (s schedule) run(r rules, quiet bool) *world {
	w := newWorld(s.seed, s.hosts)
	w.rules, w.broken, w.quiet, w.copies, w.period, w.retry = r, r.broken, quiet, s.copies, s.period, s.retry
	for i, h := range w.hosts {
		h.life, h.skew, h.hooks, h.tweak = s.lives[i], s.skews[i], s.what.hooks, s.what.tell
	}
	var wg sync.WaitGroup
	for i, h := range w.hosts {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 37 * time.Millisecond)
			h.loop()
		})
	}
	for _, f := range s.faults {
		wg.Go(func() {
			time.Sleep(f.at)
			w.inject(f)
		})
	}
	time.Sleep(faultTime + longest)
	w.mu.Lock()
	before := len(w.children)
	w.mu.Unlock()
	time.Sleep(calm)
	w.checkProgress(before)
	w.checkPeriods()
	w.shutdown(&wg)
	return w
}

// checkProgress: in the calm somebody must have run. A session of a dead keeper lasts
// 2 x TTL, its lease L; a host that went away in the last moment of a fault is the worst
// case.
func (w *world) checkProgress(before int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.period > calm/2 {
		return // it may be done: checkPeriods
	}
	for _, dir := range w.dirs() {
		runs := func(c *simChild) bool { return c.key == dir+".lock" && c.hook == "" }
		if !slices.ContainsFunc(w.children[before:], runs) &&
			!slices.ContainsFunc(w.children, func(c *simChild) bool { return !c.gone && runs(c) }) {
			w.violate("nobody has run %s for %s after the last fault", dir, calm)
		}
	}
}

// checkPeriods: in the calm the last period was run to its end by somebody, whoever began it.
func (w *world) checkPeriods() {
	held := w.heldLocks() // perhaps between two restarts
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, dir := range w.dirs() {
		if w.period == 0 || w.retry == consulsession.Never {
			return
		}
		p := w.last[dir]
		if p == nil {
			w.violate("no period of %s was begun", dir)
			continue
		}
		if !p.ended && !slices.Contains(held, dir+".lock") {
			w.violate("period %s of %s was begun and didn't end, and nobody runs it", p.id, dir)
		}
	}
}

// shutdown ends all hosts.
func (w *world) shutdown(wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for _, h := range w.hosts {
		h.mu.Lock()
		h.stopped = true
		h.mu.Unlock()
		h.keeper.open()
		h.guards.open()
	}
	for {
		for _, h := range w.hosts {
			select {
			case h.signals <- Signal{Signal: syscall.SIGTERM}:
			default:
			}
		}
		select {
		case <-done:
			return
		case <-time.After(time.Second):
		}
	}
}

// during makes every request of the host follow plan for a while.
func (h *simHost) during(long time.Duration, plan consulmodel.Faults) {
	h.net.SetFaults(plan)
	time.Sleep(long)
	h.net.SetFaults(nil)
}

func (w *world) inject(f fault) {
	h := w.hosts[f.host]
	w.log("FAULT %s on %s for %s", faultNames[f.kind], h.name, f.long)
	r := rand.New(rand.NewPCG(uint64(f.at), uint64(f.long)))
	late := func() time.Duration {
		return time.Duration(r.Int64N(int64(60*time.Second))) / time.Duration(1+r.IntN(10))
	}
	switch f.kind {
	case netDropRequests:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{DropRequest: true} })
	case netDropAnswers:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{DropAnswer: true} })
	case netLateAnswers:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{AnswerDelay: late()} })
	case netLateRequests:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{RequestDelay: late()} })
	case netErrors:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{Status: 500, Body: "rpc error making call: EOF", Execute: r.IntN(2) == 0}
		})
	case netRefused:
		h.during(f.long, func(*consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{Refuse: syscall.ECONNREFUSED}
		})
	case consulNoLeader:
		w.model.LoseLeader()
		time.Sleep(f.long)
		w.model.ElectLeader()
		// A leader that hasn't caught up yet doesn't know the sessions that it is to renew.
		h.during(200*time.Millisecond, func(r *consulmodel.Request) consulmodel.Plan {
			if r.Endpoint == consulmodel.SessionRenew {
				return consulmodel.Plan{Status: 404, Body: "Session id not found"}
			}
			return consulmodel.Plan{}
		})
	case consulStaleTimer:
		w.ofHolder(r, func(_, session string) { w.model.StaleTimer(session) })
	case consulDestroy:
		w.ofHolder(r, func(_, session string) { w.model.DestroySession(session) })
	case stepDown:
		w.ofHolder(r, func(key, session string) {
			w.model.PutKey(path.Dir(key)+"/.step-down", fmt.Sprintf(`{"schema":1,"session":%q}`, session))
			w.model.PutKey(key+"-bell", fmt.Sprint(w.now()))
		})
	case pauseOrder:
		if r.IntN(2) == 0 { // in the moment of an acquire
			h.onceOnAcquire(f.long, 10*time.Millisecond)
		}
		w.pauseAll(f.long)
		if r.IntN(2) == 0 {
			time.Sleep(f.long / 2)
			w.resumeAll()
		}
	case endRace:
		w.endRace(r, f.long)
	case consulFreeze:
		w.model.Freeze()
		time.Sleep(f.long)
		w.model.Thaw()
	case keeperPause:
		if h.impair() {
			defer h.repair()
			h.keeper.close()
			time.Sleep(f.long)
			h.keeper.open()
		}
	case keeperKill:
		if h.impair() {
			defer h.repair()
			h.killKeeper(f.long)
		}
	case guardPause:
		if h.impair() {
			defer h.repair()
			h.guards.close()
			time.Sleep(f.long)
			h.guards.open()
		}
	case guardKill:
		if h.impair() {
			defer h.repair()
			h.killGuard()
		}
	case hostSuspend:
		if h.impair() {
			defer h.repair()
			h.suspend(f.long)
		}
	case stopSignal:
		select {
		case h.signals <- Signal{Signal: syscall.SIGTERM}:
		default:
		}
	case staleLeader:
		h = w.holder(h)
		h.during(f.long, func(req *consulmodel.Request) consulmodel.Plan {
			switch {
			case req.Endpoint == consulmodel.SessionRenew:
				return consulmodel.Plan{Status: 200, Body: fmt.Sprintf(`[{"ID":%q,"LockDelay":%d,"TTL":"10s"}]`, req.Session, w.dials.Lease)}
			case req.Endpoint == consulmodel.KVGet && req.Blocking:
				session, index := w.model.Holder(req.Key)
				return consulmodel.Plan{Status: 200, AnswerDelay: 4 * time.Second, Body: fmt.Sprintf(`[{"Key":%q,"Session":%q,"ModifyIndex":%d}]`, req.Key, session, index)}
			}
			return consulmodel.Plan{Status: 500, Body: "No cluster leader"}
		})
	case ambush:
		w.holder(h).ambush(r)
	case keyDeleted:
		w.mu.Lock()
		w.tokenOnly = true
		w.mu.Unlock()
		w.ofHolder(r, func(key, _ string) { w.model.DeleteKey(key) })
	case delaysLost:
		w.mu.Lock()
		w.tokenOnly = true
		w.mu.Unlock()
		w.model.ForgetLockDelays()
	}
}

// ofHolder does f with one of the locks that are held.
func (w *world) ofHolder(r *rand.Rand, f func(key, session string)) {
	if held := w.heldLocks(); len(held) > 0 {
		key := held[r.IntN(len(held))]
		session, _ := w.model.Holder(key)
		f(key, session)
	}
}

// onceOnAcquire returns when the host has sent an acquire, which arrives late by so much, or
// when limit is over.
func (h *simHost) onceOnAcquire(limit, late time.Duration) {
	sent := make(chan struct{})
	wait := sent
	h.net.SetFaults(func(req *consulmodel.Request) consulmodel.Plan {
		if len(req.Ops) == 0 || !isLock(req.Ops[0].Key) || !req.Has("lock") {
			return consulmodel.Plan{}
		}
		if sent != nil {
			close(sent)
		}
		sent = nil
		return consulmodel.Plan{RequestDelay: late}
	})
	select {
	case <-wait:
	case <-time.After(limit):
	}
	h.net.SetFaults(nil)
}

// pauseAll pauses the lock for long, and tells the holders of copies.
func (w *world) pauseAll(long time.Duration) {
	w.model.PutKey(simDir+".paused", fmt.Sprintf(`{"schema":1,"until":%q}`, time.Now().Add(long).UTC().Format(time.RFC3339Nano)))
	for _, key := range w.heldLocks() {
		w.model.PutKey(key+"-bell", fmt.Sprint(w.now()))
	}
}

func (w *world) resumeAll() {
	w.model.DeleteKey(simDir + ".paused")
}

// endRace kills the keeper of the next command that ends by itself, in the moment of its end
// or soon after: its guard knows the end, and the records don't yet.
func (w *world) endRace(r *rand.Rand, respawn time.Duration) {
	soon := time.Duration(r.Int64N(int64(10 * time.Millisecond)))
	for range 300 {
		time.Sleep(100 * time.Millisecond)
		w.mu.Lock()
		var next *simChild
		for _, c := range w.children {
			if !c.gone && c.hook == "" && c.host.life.runs > 0 {
				next = c
			}
		}
		now := w.now()
		w.mu.Unlock()
		if next == nil {
			continue
		}
		h := next.host
		if left := next.started + h.life.runs - now; left >= 0 {
			time.Sleep(left)
		}
		h.net.SetFaults(func(req *consulmodel.Request) consulmodel.Plan { // the release is on its way for a while
			return consulmodel.Plan{RequestDelay: 20 * time.Millisecond}
		})
		time.Sleep(soon)
		if h.impair() {
			h.killKeeper(respawn)
			h.net.SetFaults(nil)
			h.repair()
			return
		}
		h.net.SetFaults(nil)
		return
	}
}

// impair takes the one permit of a host to stop or kill a part of onlyone: with keeper and
// guard both out of action nothing can act, which the design page says.
func (h *simHost) impair() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.impaired {
		return false
	}
	h.impaired = true
	return true
}

// repair gives it back; the guard of a dead keeper must have ended, and a keeper whose
// guard is dead must have killed everything.
func (h *simHost) repair() {
	h.mu.Lock()
	g := h.guard
	h.mu.Unlock()
	if g != nil && (g.isCut() || g.killed()) {
		<-g.over
		for !g.tree.emptied() {
			time.Sleep(10 * time.Millisecond)
		}
	}
	h.mu.Lock()
	h.impaired = false
	h.mu.Unlock()
}

// killGuard: SIGKILL to the guard. The kernel kills the command itself (PDEATHSIG); what
// else descends from it becomes the keeper's.
func (h *simHost) killGuard() {
	h.mu.Lock()
	g := h.guard
	h.mu.Unlock()
	if g == nil {
		return
	}
	h.w.mu.Lock()
	if g.tree.child != nil {
		g.tree.child.unknown = true
	}
	h.w.mu.Unlock()
	g.kill()
	if !h.life.deaf { // a command without descendants
		g.tree.Kill()
	}
}

// ambush waits for a proof of the host (an ownership check or an acquire), delays its
// answer, ends the session meanwhile, and then cuts the host off or stops its keeper: the
// schedules in which it matters from when a lease is counted.
func (h *simHost) ambush(r *rand.Rand) {
	drop := consulmodel.Plan{DropRequest: true}
	if r.IntN(2) == 0 { // the proof comes after a silence, near the deadline
		h.during(10*time.Second+time.Duration(r.Int64N(int64(7*time.Second))), func(*consulmodel.Request) consulmodel.Plan { return drop })
	}
	onAcquire, stop, hit := r.IntN(2) == 0, r.IntN(2) == 0, false
	answer := 2*time.Second - time.Duration(r.Int64N(int64(2*time.Second)))/time.Duration(1+r.IntN(4)) // rather late
	end := time.Duration(r.Int64N(int64(time.Second))) / time.Duration(1+r.IntN(4))                    // rather soon
	h.during(longest, func(req *consulmodel.Request) consulmodel.Plan {
		if hit {
			return drop
		}
		if len(req.Ops) == 0 || !isLock(req.Ops[0].Key) || !req.Has(map[bool]string{true: "lock", false: "check-session"}[onAcquire]) {
			return consulmodel.Plan{}
		}
		hit = true
		key := req.Ops[0].Key
		time.AfterFunc(end, func() {
			if session, _ := h.w.model.Holder(key); session != "" {
				h.w.model.StaleTimer(session)
			}
		})
		if stop && h.impair() {
			h.keeper.close() // before it sees the answer
			time.AfterFunc(longest-time.Millisecond, func() { h.keeper.open(); h.repair() })
			return consulmodel.Plan{}
		}
		return consulmodel.Plan{AnswerDelay: answer}
	})
}

// holder is the host whose child lives, or else the one given.
func (w *world) holder(otherwise *simHost) *simHost {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.children {
		if !c.gone {
			return c.host
		}
	}
	return otherwise
}

// resumeGrace is what a child may run after a resume before the guard has been scheduled
// and its SIGKILL has taken effect; only the fencing token covers it.
const resumeGrace = 900 * time.Millisecond

// suspend stops the whole machine: keeper, guard and child. The clock runs on.
func (h *simHost) suspend(long time.Duration) {
	h.w.mu.Lock()
	h.suspended = true
	h.w.mu.Unlock()
	h.keeper.close()
	h.guards.close()
	time.Sleep(long)
	h.w.mu.Lock()
	h.suspended = false
	for _, c := range h.w.children {
		if c.host == h && !c.gone {
			c.frozenUntil = h.w.now() + resumeGrace
		}
	}
	h.w.mu.Unlock()
	h.keeper.open()
	h.guards.open()
}

// rules are what a simulation switches off; the zero value is the program as it is.
type rules struct {
	broken       brokenRules
	ttlAsLease   bool                        // the lock-delay is 1 ms, as if the TTL alone protected the holder
	guardForgets bool                        // a guard that releases doesn't say how the command ended
	drop         func(verb, key string) bool // operations that are left out of transactions
}

// simulate plays a schedule in a bubble.
func simulate(t *testing.T, s schedule, r rules, quiet bool) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = s.run(r, quiet)
	})
	return w
}

// shrink takes away faults, and makes the rest shorter, as long as the promise stays broken.
func shrink(t *testing.T, s schedule, r rules) schedule {
	breaks := func(c schedule) bool { return len(simulate(t, c, r, true).violations) > 0 }
	for again := true; again; {
		again = false
		for i := 0; i < len(s.faults); i++ {
			c := s
			c.faults = slices.Delete(slices.Clone(s.faults), i, i+1)
			if breaks(c) {
				s, again = c, true
				i--
			}
		}
	}
	for i := range s.faults {
		for s.faults[i].long > time.Second {
			c := s
			c.faults = slices.Clone(s.faults)
			c.faults[i].long /= 2
			if !breaks(c) {
				break
			}
			s = c
		}
	}
	return s
}

// report prints a failing schedule, shrunk.
func report(t *testing.T, seed uint64) {
	s := shrink(t, newSchedule(seed), rules{})
	w := simulate(t, s, rules{}, false)
	t.Errorf("seed %d breaks the promise (all of it: go test ./supervisor -run TestSimulation$ -sim.seed %d)\nfaults:\n%s\ntrace:\n%s\nviolations:\n%s",
		seed, seed, s, strings.Join(w.trace, "\n"), strings.Join(w.violations, "\n"))
}

// TestSimulation plays schedules of faults over the real supervisor, guard and session
// code for -sim.for, and checks the promise in each.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := newSchedule(*simSeed)
		w := simulate(t, s, rules{}, false)
		t.Logf("faults:\n%s", s)
		t.Log(strings.Join(w.trace, "\n"))
		if len(w.violations) > 0 {
			t.Error(strings.Join(w.violations, "\n"))
		}
		return
	}
	var next, children atomic.Uint64
	next.Store(*simFirst)
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // short-lived worlds: spend memory, not time
	begin := time.Now()
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Since(begin) < *simFor && !t.Failed() {
				seed := next.Add(1) - 1
				w := simulate(t, newSchedule(seed), rules{}, true)
				children.Add(uint64(len(w.children)))
				if len(w.violations) > 0 {
					report(t, seed)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	tell := func() {
		n := next.Load() - *simFirst
		t.Logf("%d schedules, %d children, %.0f schedules/s, seeds %d to %d", n, children.Load(), float64(n)/time.Since(begin).Seconds(), *simFirst, next.Load()-1)
	}
	for tick := time.Tick(time.Minute); ; { // a long run shows that it gets on
		select {
		case <-tick:
			tell()
		case <-done:
			tell()
			return
		}
	}
}

// TestShrink: a failing schedule is cut down to what makes it fail.
func TestShrink(t *testing.T) {
	r := rules{broken: brokenRules{trustRenewal: true}}
	for seed := uint64(1); seed <= 2000; seed++ {
		s := newSchedule(seed)
		if len(s.faults) < 4 || len(simulate(t, s, r, true).violations) == 0 {
			continue
		}
		small := shrink(t, s, r)
		if len(small.faults) >= len(s.faults) || len(simulate(t, small, r, true).violations) == 0 {
			t.Errorf("%d faults were shrunk to %d", len(s.faults), len(small.faults))
		}
		t.Logf("seed %d: %d faults shrunk to\n%s", seed, len(s.faults), small)
		return
	}
	t.Error("no failing schedule was found to shrink")
}

// TestSimulationHasTeeth switches each safety rule off in turn; a checker that doesn't
// notice is worth nothing.
func TestSimulationHasTeeth(t *testing.T) {
	for _, k := range []struct {
		name  string
		rules rules
	}{
		{"deadline from the response", rules{broken: brokenRules{countFromResponse: true}}},
		{"TTL instead of lock-delay", rules{ttlAsLease: true}},
		{"trust a renewal", rules{broken: brokenRules{trustRenewal: true}}},
		{"trust a watch", rules{broken: brokenRules{trustWatch: true}}},
		{"revive after the deadline", rules{broken: brokenRules{revive: true}}},
		{"release before gone", rules{broken: brokenRules{releaseBeforeGone: true}}},
		{"start on a late acquire", rules{broken: brokenRules{startOnLateAcquire: true}}},
		{"restart without a proof", rules{broken: brokenRules{restartUnproven: true}}},
		{"acquire doesn't check the pause", rules{drop: func(verb, key string) bool { return verb == "check-not-exists" && path.Base(key) == ".paused" }}},
		{"period begun outside of the acquire", rules{drop: func(verb, key string) bool { return verb == "cas" && path.Base(key) == ".period" }}},
		{"guard doesn't write down a natural end", rules{guardForgets: true}},
		{"release doesn't write down the end", rules{drop: func(verb, key string) bool { return verb == "set" && path.Base(key) == ".period" }}},
	} {
		t.Run(k.name, func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(*simKnobs); seed++ {
				if w := simulate(t, newSchedule(seed), k.rules, true); len(w.violations) > 0 {
					t.Logf("caught by schedule %d: %s", seed, w.violations[0])
					return
				}
			}
			t.Errorf("not caught within %d schedules", *simKnobs)
		})
	}
}
