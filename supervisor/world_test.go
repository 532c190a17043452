package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// A world is some hosts around one model of Consul in a synctest bubble: the real
// supervisor, guard state machine and consulsession; simulated processes and network.
// Its checker sees every start and end of a child and every change in Consul.
type world struct {
	model  *consulmodel.Model
	start  time.Time
	hosts  []*simHost
	dials  Dials
	rules  rules
	broken brokenRules
	copies int           // of the lock; 0: without copies
	period time.Duration // of the job; 0: none
	retry  consulsession.Retry

	mu         sync.Mutex
	children   []*simChild
	tokenOnly  bool // something happened that only the fencing token covers
	violations []string
	trace      []string
	unlocks    map[string]int        // by session
	lastToken  map[string]uint64     // by lock key
	paused     *consulsession.Order  // in force, or over and not yet taken away
	periods    map[string]*simPeriod // by the folder of the lock and the period
	last       map[string]*simPeriod // the period that was begun last, by the folder of the lock
	quiet      bool                  // no trace
}

// simPeriod is what has become of a period.
type simPeriod struct {
	id      string
	ended   bool            // its record says so
	done    bool            // and by the policy it isn't to be run again
	well    bool            // its run exited with 0, and the lock was released
	failed  map[string]bool // on these hosts
	session string          // that started a child for it first
}

const (
	simName = "job"
	simDir  = "onlyone/" + simName + "/"
)

// isLock reports whether key is the lock or one of its copies.
func isLock(key string) bool {
	return strings.HasPrefix(key, simDir) && strings.HasSuffix(key, "/.lock")
}

// dirs are the folders of the lock or its copies.
func (w *world) dirs() []string {
	if w.copies == 0 {
		return []string{simDir}
	}
	var dirs []string
	for i := range w.copies {
		dirs = append(dirs, fmt.Sprintf("%s%d/", simDir, i))
	}
	return dirs
}

// heldLocks are the lock keys that somebody holds.
func (w *world) heldLocks() (held []string) {
	for _, dir := range w.dirs() {
		if session, _ := w.model.Holder(dir + ".lock"); session != "" {
			held = append(held, dir+".lock")
		}
	}
	return held
}

func newWorld(seed uint64, hosts int) *world {
	w := &world{start: time.Now(), dials: DefaultDials(), unlocks: map[string]int{}, lastToken: map[string]uint64{},
		periods: map[string]*simPeriod{}, last: map[string]*simPeriod{}}
	w.model = consulmodel.New(consulmodel.Options{Seed: seed, OnEvent: w.onEvent})
	for i := range hosts {
		h := &simHost{w: w, name: fmt.Sprintf("h%d", i+1), rnd: rand.New(rand.NewPCG(seed, uint64(i+1))),
			signals: make(chan Signal, 16)}
		h.net = w.model.Transport(nil)
		w.hosts = append(w.hosts, h)
	}
	return w
}

func (w *world) now() Instant { return time.Since(w.start) }

func (w *world) log(format string, args ...any) {
	if w.quiet {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logLocked(format, args...)
}

func (w *world) logLocked(format string, args ...any) {
	if !w.quiet {
		w.trace = append(w.trace, fmt.Sprintf("%9.3fs  ", w.now().Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf("at %.3fs: ", w.now().Seconds())+fmt.Sprintf(format, args...))
	w.logLocked("VIOLATION "+format, args...)
}

const simLockKey = simDir + ".lock"

// onEvent watches Consul; it is called with the model locked.
func (w *world) onEvent(e consulmodel.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch dir, name := path.Split(e.Key); {
	case name == ".paused" && dir == simDir:
		w.paused = nil
		if e.Op == consulmodel.Written {
			o := consulsession.ParseOrder(e.Value)
			w.paused = &o
		}
		w.logLocked("consul: %s %s %s", e.Op, e.Key, e.Value)
	case name == ".period" && e.Op == consulmodel.Written:
		w.onPeriod(dir, e.Value)
	case isLock(e.Key):
		w.onLock(e)
	}
}

// onPeriod sees each record of a period.
func (w *world) onPeriod(dir string, value []byte) {
	var r consulsession.PeriodRecord
	if err := json.Unmarshal(value, &r); err != nil {
		panic(err)
	}
	w.logLocked("consul: period %s of %s %s by %s, attempt %d, exit %d", r.Period, dir, r.State, r.Host, r.Attempt, r.Exit)
	p := w.periodOf(dir, r.Period)
	w.last[dir] = p
	if p.ended && r.State == "begun" && p.failed[r.Host] {
		w.violate("%s begins period %s of %s again, which has failed there", r.Host, r.Period, dir)
	}
	p.ended = r.State == "ended"
	switch {
	case !p.ended:
	case r.Exit == 0 || w.retry != consulsession.OnFailure:
		p.done = true
	default:
		p.failed[r.Host] = true
	}
}

func (w *world) periodOf(dir, id string) *simPeriod {
	p := w.periods[dir+id]
	if p == nil {
		p = &simPeriod{id: id, failed: map[string]bool{}}
		w.periods[dir+id] = p
	}
	return p
}

// onLock sees each change of a lock.
func (w *world) onLock(e consulmodel.Event) {
	w.logLocked("consul: %s %s session %.4s index %d %s", e.Op, e.Key, e.Session, e.Index, e.Cause)
	switch e.Op {
	case consulmodel.Acquired:
		if e.Index <= w.lastToken[e.Key] {
			w.violate("token %d after %d", e.Index, w.lastToken[e.Key])
		}
		w.lastToken[e.Key] = e.Index
		if w.paused != nil && !w.paused.Over(w.latest()) {
			w.violate("session %.4s acquired while paused %s", e.Session, w.paused)
		}
		if w.tokenOnly {
			return
		}
		for _, c := range w.children {
			if c.runs() && c.session != e.Session && c.key == e.Key && c.hook != "loss" {
				w.violate("session %.4s acquired while the child of %s with token %s is alive", e.Session, c.host.name, c.token)
			}
		}
	case consulmodel.Released:
		w.unlocks[e.Session]++
		if w.unlocks[e.Session] > 1 {
			w.violate("session %.4s was unlocked twice", e.Session)
		}
		for _, c := range w.children {
			if c.session != e.Session || c.hook == "loss" {
				continue
			}
			if c.runs() {
				w.violate("released while %s with token %s is alive", c, c.token)
			}
			if c.period != "" && c.gone && c.hook == "" && c.status == 0 && c.terms == 0 && !c.unknown {
				w.periodOf(path.Dir(e.Key)+"/", c.period).well = true
			}
		}
	}
}

// latest is the time by the wall clock that is ahead of the others.
func (w *world) latest() time.Time {
	var skew time.Duration
	for _, h := range w.hosts {
		skew = max(skew, h.skew)
	}
	return time.Now().Add(skew)
}

// simChild is a command. It is alive until it exits or a kill has taken effect.
type simChild struct {
	host           *simHost
	token, session string
	key            string // of the lock
	hook           string // which hook it is; empty: the command itself
	period         string
	unknown        bool // the guard that would know how it ended was killed
	started, ended Instant
	status         syscall.WaitStatus // when it is gone
	terms          int                // SIGTERMs
	gone           bool
	frozenUntil    Instant // its whole machine was suspended; it runs no code before
}

// runs reports whether it may run code at this instant. After a suspend it may run for
// the milliseconds that the guard needs.
func (c *simChild) runs() bool {
	return !c.gone && !c.host.suspended && c.host.w.now() >= c.frozenUntil
}

// gate stops whoever passes while it is closed: a process under SIGSTOP, or a suspended
// machine.
type gate struct {
	mu     sync.Mutex
	closed chan struct{}
}

func (g *gate) wait() {
	for {
		g.mu.Lock()
		c := g.closed
		g.mu.Unlock()
		if c == nil {
			return
		}
		<-c
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// simHost is one machine: a keeper, at times a guard, at times a child.
type simHost struct {
	w       *world
	name    string
	rnd     *rand.Rand
	rndMu   sync.Mutex
	net     *consulmodel.Transport
	keeper  gate
	guards  gate
	signals chan Signal

	mu        sync.Mutex
	guard     *simGuard // the present one
	dead      bool      // the keeper was killed: it unwinds, cut off from everything
	suspended bool
	impaired  bool
	stopped   bool // contend no more
	life      childLife
	hooks     map[string]childLife // of its hooks, by name
	skew      time.Duration        // of its wall clock
	outcomes  []simOutcome
	once      bool // one onlyone, no other after it
	missing   bool // the command can't be executed

	// What this host's onlyone is told beyond the defaults; nil: nothing.
	tweak   func(*Config)
	session func(*consulsession.Config)
}

// simOutcome is how and when a run ended.
type simOutcome struct {
	Outcome
	at Instant
}

// childLife is how children of a host behave.
type childLife struct {
	runs    time.Duration // until they exit by themselves; 0: never
	exit    int           // with this
	leaves  time.Duration // what it started outlives it for so long, SIGKILL apart
	dawdle  time.Duration // from SIGTERM to their exit
	deaf    bool          // to SIGTERM
	killLag time.Duration // from SIGKILL to gone
}

func (h *simHost) jitter(most time.Duration) time.Duration {
	h.rndMu.Lock()
	defer h.rndMu.Unlock()
	if most <= 0 {
		return 0
	}
	return time.Duration(h.rnd.Int64N(int64(most)))
}

func (h *simHost) isDead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

// keeperNet is the keeper's network: it passes the keeper's gate before a request goes
// out and before its answer is seen.
type keeperNet struct {
	h    *simHost
	gate *gate
}

func (n keeperNet) RoundTrip(r *http.Request) (*http.Response, error) {
	n.gate.wait()
	if n.gate == &n.h.keeper && n.h.isDead() {
		return nil, syscall.ECONNREFUSED
	}
	if drop := n.h.w.rules.drop; drop != nil {
		r = without(r, drop)
	}
	resp, err := n.h.net.RoundTrip(r)
	n.gate.wait()
	return resp, err
}

// without is a transaction without the operations that drop names: a program that leaves
// something out of it.
func without(r *http.Request, drop func(verb, key string) bool) *http.Request {
	if !strings.HasSuffix(r.URL.Path, "/v1/txn") {
		return r
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	var ops []json.RawMessage
	if err := json.Unmarshal(body, &ops); err != nil {
		panic(err)
	}
	ops = slices.DeleteFunc(ops, func(raw json.RawMessage) bool {
		var op struct{ KV struct{ Verb, Key string } }
		return json.Unmarshal(raw, &op) == nil && drop(op.KV.Verb, op.KV.Key)
	})
	if body, err = json.Marshal(ops); err != nil {
		panic(err)
	}
	c := r.Clone(r.Context())
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return c
}

func (h *simHost) clock() Clock {
	return Clock{
		Now: func() Instant { h.keeper.wait(); return h.w.now() },
		NewAlarm: func() (Alarm, error) {
			return &simAlarm{w: h.w, c: make(chan struct{}, 1)}, nil
		},
	}
}

type simAlarm struct {
	w     *world
	c     chan struct{}
	timer *time.Timer
}

func (a *simAlarm) C() <-chan struct{} { return a.c }
func (a *simAlarm) Close() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
func (a *simAlarm) Set(at Instant) {
	a.Close()
	a.timer = time.AfterFunc(at-a.w.now(), func() {
		select {
		case a.c <- struct{}{}:
		default:
		}
	})
}

// simLock adapts consulsession, as cli does.
type simLock struct {
	c *consulsession.Contender
	h *simHost
}

type simTerm struct {
	*consulsession.Term
	h *simHost
	c *consulsession.Contender
}

func (l simLock) Acquire(ctx context.Context, ready func([]byte) error, looks func(bool)) (Term, error) {
	l.c.Looks = looks
	t, err := l.c.Acquire(ctx, ready)
	if err != nil {
		return nil, err
	}
	return simTerm{t, l.h, l.c}, nil
}

func (t simTerm) Unlock(ctx context.Context, r RunResult) error {
	return t.Term.Unlock(ctx, consulsession.Ended(r))
}

func (t simTerm) Unclean() (env [][]string) {
	for _, u := range t.Term.Unclean() {
		env = append(env, []string{"ONLYONE_OLD_HOST=" + u.Host, "ONLYONE_OLD_SESSION=" + u.Session, fmt.Sprintf("ONLYONE_OLD_TOKEN=%d", u.Token)})
	}
	return env
}

// Check, as cli adapts it.
func (t simTerm) Check(ctx context.Context) (Order, error) {
	o, err := t.Term.Check(ctx)
	switch {
	case o.StepDown != nil:
		return Order{StepDown, o.StepDown.String()}, err
	case o.Paused != nil:
		return Order{Pause, o.Paused.String()}, err
	}
	return Order{}, err
}

// Watch, with the rule about watches broken, says "changed" whenever a watch comes back
// and shows the lock as ours, as a program that believes watches would.
func (t simTerm) Watch(ctx context.Context, changed func()) {
	if !t.h.w.broken.trustWatch {
		t.Term.Watch(ctx, changed)
		return
	}
	client := &http.Client{Transport: keeperNet{t.h, &t.h.keeper}}
	for ctx.Err() == nil {
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://consul.invalid/v1/kv/"+t.Key()+"?index="+fmt.Sprint(t.Token())+"&wait=4s", nil)
		resp, err := client.Do(req)
		if err == nil {
			var b strings.Builder
			buf := make([]byte, 4096)
			n, _ := resp.Body.Read(buf)
			b.Write(buf[:n])
			resp.Body.Close()
			if strings.Contains(b.String(), `"Session":"`+t.Session()) {
				changed()
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// runOnce is one life of an onlyone process on this host.
func (h *simHost) runOnce() Outcome {
	w := h.w
	lease := w.dials.Lease
	if w.rules.ttlAsLease {
		lease = time.Millisecond
	}
	clock := h.clock()
	session := consulsession.Config{
		Client: consulsession.ClientConfig{Transport: keeperNet{h, &h.keeper}},
		Prefix: "onlyone", Name: simName, Lease: lease, TTL: w.dials.TTL, Poll: w.dials.Poll,
		Host: h.name, Pid: 1, Now: clock.Now, Wall: h.wall, Jitter: h.jitter, Log: zerolog.Nop(),
	}
	session.Copies = w.copies
	if w.period > 0 {
		begin := h.wall().Truncate(w.period)
		session.Period = consulsession.Period{ID: begin.UTC().Format(time.RFC3339), Spec: "sim", Start: begin, Retry: w.retry}
	}
	if h.session != nil {
		h.session(&session)
	}
	c, err := consulsession.NewContender(session)
	if err != nil {
		panic(err)
	}
	h.mu.Lock()
	h.guard = nil
	h.mu.Unlock()
	config := Config{
		Dials: w.dials, Command: Command{Path: "/bin/job", Args: []string{"job"}},
		StopSignal: syscall.SIGTERM, StopTimeout: 30 * time.Second, Wait: -1, NoWait: session.NoWait,
		Clock: clock, Lock: simLock{c, h}, StartGuard: func() (Guard, error) { return h.startGuard() },
		Signals: h.signals, Jitter: h.jitter, Log: zerolog.Nop(), broken: w.broken,
	}
	if h.tweak != nil {
		h.tweak(&config)
	}
	return Run(context.Background(), config)
}

// wall is the host's wall clock: as wrong as it is set.
func (h *simHost) wall() time.Time { return time.Now().Add(h.skew) }

// loop runs onlyone again and again until the host is stopped.
func (h *simHost) loop() {
	for {
		h.mu.Lock()
		stopped := h.stopped
		h.mu.Unlock()
		if stopped {
			return
		}
		out := h.runOnce()
		h.w.log("%s: ended %d %v", h.name, out.Kind, out.Err)
		h.mu.Lock()
		if !h.dead {
			h.outcomes = append(h.outcomes, simOutcome{out, h.w.now()})
		}
		dead := h.dead
		once := h.once
		h.dead = false
		h.mu.Unlock()
		if dead {
			h.w.log("%s: a new onlyone", h.name)
		}
		if once && !dead {
			return
		}
		if _, done := errors.AsType[*consulsession.DoneError](out.Err); h.w.period > 0 && !dead && done {
			now := h.wall() // as cron does; until it is done somebody waits
			h.nap(now.Truncate(h.w.period).Add(h.w.period).Sub(now))
		}
		time.Sleep(100*time.Millisecond + h.jitter(time.Second))
	}
}

// nap sleeps for d, or until the host is stopped.
func (h *simHost) nap(d time.Duration) {
	for end := h.w.now() + d; ; {
		h.mu.Lock()
		stopped := h.stopped
		h.mu.Unlock()
		left := end - h.w.now()
		if stopped || left <= 0 {
			return
		}
		time.Sleep(min(left, 5*time.Second))
	}
}

// killKeeper: SIGKILL. The guard sees its pipe closed; the keeper's goroutines unwind
// later, cut off from the guard and the network.
func (h *simHost) killKeeper(respawn time.Duration) {
	h.mu.Lock()
	if h.dead {
		h.mu.Unlock()
		return
	}
	h.dead = true
	g := h.guard
	h.mu.Unlock()
	h.keeper.close()
	if g != nil {
		g.keeperDied()
	}
	time.AfterFunc(respawn, func() {
		// What is left of the old keeper ends at once: nobody answers, and it is told to stop.
		select {
		case h.signals <- Signal{Signal: syscall.SIGTERM}:
		default:
		}
		h.keeper.open()
	})
}

// simGuard runs the guard's state machine as guardLoop does, on simulated processes.
type simGuard struct {
	h      *simHost
	g      guard
	tree   *simTree
	in     chan func(now Instant)
	poke   chan struct{}
	events chan Event
	dead   chan struct{} // SIGKILL to the guard
	once   sync.Once
	over   chan struct{}
	cut    bool // the keeper has died: its calls reach nobody
	eof    bool
	quit   bool
	info   release
}

func (h *simHost) startGuard() (Guard, error) {
	g := &simGuard{h: h, in: make(chan func(Instant), 4096), poke: make(chan struct{}, 1), events: make(chan Event, 4096),
		dead: make(chan struct{}), over: make(chan struct{})}
	g.tree = &simTree{h: h, poke: g.poke}
	g.g = guard{killAfter: h.w.dials.KillAfter, stopSignal: syscall.SIGTERM, tree: g.tree, revive: h.w.broken.revive,
		send: func(e Event) {
			select {
			case g.events <- e:
			default:
			}
		}}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return nil, errors.New("dead")
	}
	h.guard = g
	go g.loop()
	return g, nil
}

func (g *simGuard) loop() {
	defer close(g.over)
	g.g.send(Event{Kind: GuardReady})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for g.g.phase != guardIdle && g.g.phase != guardGone || !g.quit && !g.eof {
		wait := time.Hour
		if next := g.g.next(); next > 0 {
			wait = next - g.h.w.now()
		}
		if g.g.phase == guardKilling {
			wait = killPause
		}
		timer.Reset(max(wait, 0))
		var f func(Instant)
		select {
		case f = <-g.in:
		case <-g.poke:
		case <-timer.C:
		case <-g.dead:
			close(g.events)
			return
		}
		g.h.guards.wait()
		select {
		case <-g.dead:
			close(g.events)
			return
		default:
		}
		g.g.tick(g.h.w.now())
		if f != nil {
			f(g.h.w.now())
		}
		g.g.tick(g.h.w.now())
		if g.eof && g.g.phase == guardKilling && g.h.w.now() >= g.g.kill+margin {
			return
		}
	}
	close(g.events)
	if !g.quit && g.info.Info != nil {
		limit := 2 * time.Second
		if g.g.kill > 0 {
			limit = min(limit, g.g.kill+margin-g.h.w.now())
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		r := g.g.result(time.Now(), time.Now(), g.info.Result)
		if g.h.w.rules.guardForgets {
			r = RunResult{Started: r.Started}
		}
		err := consulsession.ReleaseTerm(ctx, g.info.Info, consulsession.Ended(r), keeperNet{g.h, &g.h.guards})
		g.h.w.log("%s: guard releases: %v", g.h.name, err)
	}
}

// do has the guard do something, as a frame would. A dead keeper's frames reach nobody.
func (g *simGuard) do(f func(now Instant)) {
	g.h.mu.Lock()
	cut := g.cut
	g.h.mu.Unlock()
	if cut {
		return
	}
	select {
	case g.in <- f:
	default:
	}
}

func (g *simGuard) keeperDied() {
	g.do(func(now Instant) { g.eof = true; g.g.keeperGone(now) })
	g.h.mu.Lock()
	g.cut = true
	g.h.mu.Unlock()
}

func (g *simGuard) killed() bool {
	select {
	case <-g.dead:
		return true
	default:
		return false
	}
}

func (g *simGuard) kill() { g.once.Do(func() { close(g.dead) }) }

func (g *simGuard) Events() <-chan Event { return g.events }
func (g *simGuard) ReleaseInfo(info []byte, r *RunResult) {
	g.do(func(Instant) { g.info = release{info, r} })
}
func (g *simGuard) Deadlines(term, kill Instant) { g.do(func(Instant) { g.g.deadlines(term, kill) }) }
func (g *simGuard) Start(c Command)              { g.do(func(now Instant) { g.g.start(now, c) }) }
func (g *simGuard) Signal(s syscall.Signal)      { g.do(func(Instant) { g.g.signal(s) }) }
func (g *simGuard) Stop(s Stop)                  { g.do(func(Instant) { g.g.stop(s) }) }
func (g *simGuard) Kill()                        { g.do(func(now Instant) { g.g.stop(Stop{KillAt: now}) }) }

func (g *simGuard) Quit() {
	g.do(func(Instant) { g.quit = true })
	if !g.isCut() {
		select {
		case <-g.over:
		case <-time.After(500 * time.Millisecond):
			g.kill()
			<-g.over
		}
	}
}

func (g *simGuard) isCut() bool {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	return g.cut
}

func (g *simGuard) Enforce(giveUp <-chan struct{}) bool {
	if g.isCut() {
		return true
	}
	g.h.w.mu.Lock()
	if g.tree.child != nil {
		g.tree.child.unknown = true
	}
	g.h.w.mu.Unlock()
	g.kill()
	g.h.guards.open() // a stopped process dies of SIGKILL, too
	for {
		g.h.keeper.wait()
		g.tree.Kill()
		if _, empty := g.tree.Reap(); empty {
			return true
		}
		select {
		case <-giveUp:
			return false
		case <-time.After(killPause):
		}
	}
}

// simTree is one child, and what it does about signals.
type simTree struct {
	h      *simHost
	life   childLife
	poke   chan struct{}
	child  *simChild
	status *syscall.WaitStatus
	ended  bool // the command itself has
	killed bool
}

func env(c Command, name string) string {
	for _, kv := range c.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func (t *simTree) Start(c Command) (int, error) {
	w := t.h.w
	t.h.mu.Lock()
	missing := t.h.missing
	t.h.mu.Unlock()
	if missing && env(c, "ONLYONE_HOOK") == "" {
		return 0, syscall.ENOENT
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	child := &simChild{host: t.h, token: env(c, "FENCE_TOKEN"), session: env(c, "ONLYONE_SESSION"), key: env(c, "ONLYONE_KEY"), hook: env(c, "ONLYONE_HOOK"), period: env(c, "ONLYONE_PERIOD"), started: w.now()}
	t.child, t.life = child, t.h.life
	if child.hook != "" {
		t.life = t.h.hooks[child.hook]
	}
	w.logLocked("%s: %s starts, token %s", t.h.name, child, child.token)
	w.checkStart(child)
	w.children = append(w.children, t.child)
	if t.life.runs > 0 {
		t.after(t.life.runs, syscall.WaitStatus(t.life.exit<<8))
	}
	return 1, nil
}

// String is what it is, for the trace.
func (c *simChild) String() string {
	if c.hook != "" {
		return "the " + c.hook + " hook"
	}
	return "child"
}

// checkStart: nothing else may be alive under the same lock. What a loss is told to needs none.
func (w *world) checkStart(c *simChild) {
	for _, other := range w.children {
		if !w.tokenOnly && other.runs() && other.key == c.key && other.hook != "loss" && c.hook != "loss" {
			w.violate("%s of %s (token %s) starts while %s of %s (token %s) is alive", c, c.host.name, c.token, other, other.host.name, other.token)
		}
	}
	if c.hook != "" || c.period == "" || w.tokenOnly {
		return
	}
	p := w.periodOf(path.Dir(c.key)+"/", c.period)
	if p.session == "" {
		p.session = c.session
	}
	switch {
	case p.session != c.session && w.retry == consulsession.Never:
		w.violate("%s starts a child for period %s of %s, which was begun before", c.host.name, c.period, c.key)
	case p.done:
		w.violate("%s starts a child for period %s of %s, which has ended", c.host.name, c.period, c.key)
	case p.well:
		w.violate("%s starts a child for period %s of %s, whose run ended well and was released", c.host.name, c.period, c.key)
	}
}

// after ends the child in d with status.
func (t *simTree) after(d time.Duration, status syscall.WaitStatus) {
	c := t.child
	time.AfterFunc(d, func() {
		w := t.h.w
		w.mu.Lock()
		defer w.mu.Unlock()
		if c.gone {
			return
		}
		if !t.ended {
			t.ended, c.status, t.status = true, status, &status
			w.logLocked("%s: %s with token %s ends (%#x)", t.h.name, c, c.token, status)
		}
		if t.killed || t.life.leaves == 0 {
			t.empty()
		} else {
			time.AfterFunc(t.life.leaves, func() { w.mu.Lock(); defer w.mu.Unlock(); t.empty() })
		}
		t.wake()
	})
}

// empty: nothing of the command is left. Called with the world locked.
func (t *simTree) empty() {
	if !t.child.gone {
		t.child.gone, t.child.ended = true, t.h.w.now()
		t.wake()
	}
}

func (t *simTree) wake() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

func (t *simTree) Signal(s syscall.Signal) {
	if s == syscall.SIGTERM {
		t.child.terms++
	}
	if s == syscall.SIGTERM && !t.life.deaf {
		t.after(t.life.dawdle, syscall.WaitStatus(syscall.SIGTERM))
	}
}

func (t *simTree) Continue()       {}
func (t *simTree) TermAll()        {}
func (t *simTree) Names() []string { return nil }
func (t *simTree) Kill() {
	t.h.w.mu.Lock()
	first := !t.killed && t.child != nil
	t.killed = t.killed || first
	t.h.w.mu.Unlock()
	if first {
		t.after(t.life.killLag, syscall.WaitStatus(syscall.SIGKILL))
	}
}

func (t *simTree) emptied() bool {
	t.h.w.mu.Lock()
	defer t.h.w.mu.Unlock()
	return t.child == nil || t.child.gone
}

func (t *simTree) Reap() (*syscall.WaitStatus, bool) {
	t.h.w.mu.Lock()
	defer t.h.w.mu.Unlock()
	if t.child == nil {
		return nil, true
	}
	s := t.status
	t.status = nil
	return s, t.child.gone
}
