package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/drain"
	"github.com/a-seed-0bc5ead7/onlyone/period"
	"github.com/a-seed-0bc5ead7/onlyone/signals"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
	"github.com/a-seed-0bc5ead7/onlyone/systemd"
	"github.com/a-seed-0bc5ead7/onlyone/telling"
)

// Version is set when a release is built.
var Version = "0.1.0-dev"

// Main is the whole program: it returns the exit code, or ends the process by the signal
// that ended the command.
func Main(args []string, stdout, stderr io.Writer) int {
	return MainAt(time.Now, args, stdout, stderr)
}

// MainAt is Main with another wall clock, so that a host whose clock is wrong can be tested.
// Only what people read and --once-per depend on it; the lease doesn't.
func MainAt(now func() time.Time, args []string, stdout, stderr io.Writer) int {
	log.SetOutput(io.Discard) // net/http says there what a request's error says, too
	a := New(Version, run)
	a.die, a.now = signals.Die, now
	return a.Main(context.Background(), args, stdout, stderr)
}

// run is "onlyone run".
func run(ctx context.Context, o RunOptions) error {
	dials := supervisor.Dials{Lease: o.Lease, KillAfter: o.KillAfter, TTL: o.TTL, Poll: o.Poll}
	err := checkDials(dials)
	if o.Explain {
		if err != nil {
			return err
		}
		return explain(o, dials)
	}
	unstarted := func(err error) error { return newRunner(o, dials, "", nil).unstarted(err) }
	if err != nil {
		return unstarted(err)
	}
	only := o.Prefix + "/" + o.Name + "/.lock" // that this run could have
	if o.Copies == 1 {
		only = o.Prefix + "/" + o.Name + "/0/.lock"
	}
	if os.Getenv("ONLYONE_KEY") == only && !o.NoWait && o.Wait == 0 {
		return unstarted(&exitError{code: exitConfig, what: fmt.Errorf("this already runs under the lock %s, so it would wait for itself for ever", o.Name),
			hint: "leave the inner onlyone out, give it another NAME, or: -w DUR"})
	}
	path, err := findCommand(o.Command[0])
	if err != nil {
		return unstarted(err)
	}
	if o.BaseName {
		o.Log.Info().Msgf("the lock is named %s, after the command; to choose: onlyone run NAME -- %s", o.Name, abbreviated(o.Command))
	}
	if outside := handsOver(o.Command[0]); outside != "" {
		o.Log.Warn().Msgf("%s hands its work to %s: what runs there is not stopped when the lock is lost", filepath.Base(o.Command[0]), outside)
	}
	if limit := supervisor.PlatformLimit(); limit != "" {
		o.Log.Warn().Msg(limit)
	}
	if !o.Once.Spec.IsZero() {
		if text := o.Once.misfit(o.Now()); text != "" {
			o.Log.Warn().Msg(text)
		}
	}
	if dials.NeedsPatience() {
		o.Log.Warn().Msgf("an election of a Consul leader (up to 13s) may outlast the renew deadline of %s and move the job; --lease 20s or more rides it out", dials.RenewDeadline())
	}
	// A log reader that has gone must not end the keeper (Go dies by SIGPIPE on fd 2). Not
	// signal.Ignore: the command would inherit it.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	// Never stopped: what comes while the last steps are made must not cut them short, and to
	// give all signals back takes a millisecond.
	sigs, _ := signals.Receive()
	return newRunner(o, dials, path, sigs).run(ctx)
}

// checkDials refuses dials that can't work together.
func checkDials(d supervisor.Dials) error {
	err := d.Validate()
	if err == nil {
		return nil
	}
	e := &exitError{code: exitConfig, what: err}
	if b, ok := errors.AsType[*supervisor.BudgetError](err); ok {
		e.hint = "this works: " + b.Fix
	}
	return e
}

// hostname is this host's, for records.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// runner is one run: it connects supervisor, Consul, signals, systemd, the terminal and
// whoever is told.
type runner struct {
	o       RunOptions
	dials   supervisor.Dials
	path    string
	sigs    <-chan signals.Signal
	manager *manager
	turns   <-chan struct{}
	tell    *teller
	since   atomic.Int64 // when it began to wait, in Unix nanoseconds
	queue   chan consulsession.Queue
	last    atomic.Pointer[consulsession.Queue] // what it waited for when it was last told
	said    atomic.Bool                         // what it waits for, since it began to
	started atomic.Bool                         // the command: there is nothing to wait for any more
	told    atomic.Bool                         // a stop signal came
}

func newRunner(o RunOptions, dials supervisor.Dials, path string, sigs <-chan signals.Signal) *runner {
	m, turns := newManager(o.Notify)
	return &runner{o: o, dials: dials, path: path, sigs: sigs, manager: m, turns: turns, queue: make(chan consulsession.Queue)}
}

func (r *runner) run(ctx context.Context) error {
	defer r.manager.close()
	clock := supervisor.BootClock()
	host := cmp.Or(r.o.Host, hostname())
	jitter := func(most time.Duration) time.Duration { return rand.N(max(most, 1)) }
	per, splay, startBy := r.schedule(host, clock.Now())
	var err error
	if r.tell, err = newTeller(r.o, host, per.ID); err != nil {
		return err
	}
	contender, err := consulsession.NewContender(consulsession.Config{
		Client: r.o.Consul.client(),
		Prefix: r.o.Prefix, Name: r.o.Name, Lease: r.o.Lease, TTL: r.o.TTL, Poll: r.o.Poll,
		NoWait: r.o.NoWait, Copies: r.o.Copies, Checks: r.o.Checks, SessionNode: r.o.SessionNode,
		Period: consulsession.Period{ID: per.ID, Spec: per.Spec, Start: per.Start, Retry: r.o.Once.Retry},
		Host:   host, Pid: os.Getpid(), Command: shown(r.o.Command),
		Now: clock.Now, Wall: r.o.Now, Jitter: jitter, Log: r.o.Log, Waiting: r.waiting,
	})
	if err != nil { // a token file that isn't there yet
		err = &exitError{code: exitUsage, what: err}
		r.tell.ended(supervisor.Outcome{}, err)
		return err
	}
	defer contender.Close()
	wait := r.o.Wait
	if wait == 0 {
		wait = -1 // for ever; NoWait is the contender's affair
	}
	env := r.environment()
	drained, drains, stopWatching := r.drains(ctx)
	stopDrawing, stopBeating := r.draw(), r.manager.beat()
	orphans := &supervisor.Orphans{}
	if os.Getpid() == 1 {
		defer orphans.Reap()()
	}
	out := supervisor.Run(ctx, supervisor.Config{
		Dials:      r.dials,
		Command:    supervisor.Command{Path: r.path, Args: r.o.Command, Env: env},
		StopSignal: r.o.Signal, StopTimeout: r.o.StopTimeout,
		NoWait: r.o.NoWait, Wait: wait, Splay: splay, StartBy: startBy,
		MaxRuntime: r.o.MaxRuntime, MinHold: r.o.MinHold, OnLostWait: r.o.OnLost == "wait",
		Restart: supervisor.Restart{Policy: policies[r.o.Restart], Delay: r.o.RestartDelay, Most: r.o.MaxRestarts},
		Hooks: supervisor.Hooks{Fence: hook(r.o.FenceCmd, env), OnAcquire: hook(r.o.OnAcquire, env), OnRelease: hook(r.o.OnRelease, env),
			OnLoss: hook(r.o.OnLoss, env), Timeout: r.o.HookTimeout},
		Clock: clock, Lock: consulLock{contender, termStore{systemd.TermDir(), r.o.Log}, r.drained},
		StartGuard: func() (supervisor.Guard, error) {
			return supervisor.StartGuard(supervisor.GuardOptions{KillAfter: r.o.KillAfter, StopSignal: r.o.Signal, PIDNamespace: r.o.PIDNamespace, Orphans: orphans})
		},
		Drained: drained, Drains: drains, Signals: r.signals(), Turns: r.turns, Jitter: jitter, Log: r.o.Log, Observer: observer{r},
	})
	stopDrawing()
	stopBeating()
	stopWatching()
	err = r.exit(out, contender)
	r.tell.ended(out, err)
	return err
}

// unstarted tells those who were to be told that err ended it before it began.
func (r *runner) unstarted(err error) error {
	per, _, _ := r.schedule("", 0)
	tell, err2 := newTeller(r.o, cmp.Or(r.o.Host, hostname()), per.ID)
	if err2 != nil {
		r.o.Log.Warn().Msg(err2.Error())
		return err
	}
	tell.ended(supervisor.Outcome{}, err)
	return err
}

var policies = map[string]supervisor.RestartPolicy{
	"no": supervisor.RestartNo, "on-failure": supervisor.RestartOnFailure, "always": supervisor.RestartAlways,
}

// drains is whether this host is drained, and a channel with its changes until stop is called.
func (r *runner) drains(ctx context.Context) (now supervisor.Drain, changes <-chan supervisor.Drain, stop func()) {
	dirs := drain.Dirs(r.o.RuntimeDir)
	state, _ := drain.Read(dirs, r.o.Now()) // a file that can't be understood counts, and says so itself
	ctx, cancel := context.WithCancel(ctx)
	c, gone := make(chan supervisor.Drain), make(chan struct{})
	go func() {
		defer close(gone)
		drain.Watch(ctx, dirs, func(s drain.State) {
			select {
			case c <- asDrain(s):
			case <-ctx.Done():
			}
		})
	}()
	return asDrain(state), c, func() { cancel(); <-gone }
}

// drained reports whether this host is drained at this moment.
func (r *runner) drained() bool {
	state, _ := drain.Read(drain.Dirs(r.o.RuntimeDir), r.o.Now())
	return state.On
}

func asDrain(s drain.State) supervisor.Drain {
	return supervisor.Drain{On: s.On, Finish: s.Finish, Why: strings.TrimSpace(strings.TrimPrefix(s.String(), "drained"))}
}

// schedule is the period that this start belongs to, how long to wait before contending, and
// the last instant at which the command may be started; 0: whenever.
func (r *runner) schedule(host string, now supervisor.Instant) (per period.Period, splay time.Duration, startBy supervisor.Instant) {
	wall := r.o.Now()
	begin := wall
	if !r.o.Once.Spec.IsZero() {
		per = r.o.Once.at(wall)
		if !per.Start.IsZero() {
			begin = per.Start
		}
	}
	if r.o.StartDeadline > 0 {
		startBy = max(now+begin.Add(r.o.StartDeadline).Sub(wall), 1)
	}
	return per, period.Splay(host, cmp.Or(per.ID, strconv.Itoa(os.Getpid())), r.o.Splay), startBy
}

// environment is the command's, before the variables of its term: it asks the same Consul as
// onlyone does. Of a run around this one it doesn't have the period and the copy, which are of
// another lock; IDEMPOTENCY_KEY, which names the work, stays.
func (r *runner) environment() []string {
	drop := []string{"ONLYONE_PERIOD", "ONLYONE_COPY", "ONLYONE_COPIES"}
	if r.o.DropToken {
		drop = append(drop, "CONSUL_HTTP_TOKEN")
	}
	if byToken := r.o.Consul.Token != "" && r.o.Consul.TokenFile == ""; r.o.DropToken || byToken {
		drop = append(drop, "CONSUL_HTTP_TOKEN_FILE") // it would count more than the token
	}
	env := supervisor.WithEnv(r.manager.env(os.Environ()), r.o.Consul.environment())
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name)
	})
}

// signals hands signals on; the two packages don't know each other. It ends with its source.
func (r *runner) signals() <-chan supervisor.Signal {
	out := make(chan supervisor.Signal)
	go func() {
		for s := range r.sigs {
			if s.Signal == unix.SIGTERM || s.Signal == unix.SIGINT {
				r.told.Store(true)
			}
			pass := func(reload bool) {
				out <- supervisor.Signal{Signal: s.Signal, FromTerminal: s.FromTerminal, Reload: reload}
			}
			if s.Signal != unix.SIGHUP || !r.manager.reload(func() { pass(true) }) {
				pass(false)
			}
		}
	}()
	return out
}

// waiting tells people what this contender waits for: once with -v, each change with -vv. A
// terminal's line says it anyway.
func (r *runner) waiting(q consulsession.Queue) {
	level := zerolog.DebugLevel
	if !r.said.Swap(true) && !r.o.Status.Active() {
		level = zerolog.InfoLevel
	}
	r.o.Log.WithLevel(level).Msg("waiting: " + queueText(q, time.Now()))
	r.manager.wait(func(now time.Time) string { return "standby: " + queueText(q, now) })
	r.tell.metrics.Queue(q.Position, q.Of)
	r.last.Store(&q)
	r.queue <- q
}

// queueText is the place in the queue and the holder: "2nd of 3, held by web-2 since 12m".
func queueText(q consulsession.Queue, now time.Time) string {
	text := "held by a session that isn't onlyone's"
	switch {
	case q.Done > 0:
		text = fmt.Sprintf("%d of %d copies are done, the others run", q.Done, q.Copies)
	case q.Copies > 0 && !q.Free:
		text = fmt.Sprintf("all %d copies run", q.Copies)
	case q.Holder.Host != "":
		text = fmt.Sprintf("held by %s (pid %d)", q.Holder.Host, q.Holder.Pid)
		if since, err := time.Parse(time.RFC3339, q.Holder.Since); err == nil {
			text += " since " + formatDuration(max(now.Sub(since), 0).Truncate(time.Second))
		}
	}
	switch {
	case q.Paused != nil:
		text = "paused " + q.Paused.String()
	case q.Free:
		text = "free, but the lock-delay of its last holder is running"
	}
	if q.Position > 0 {
		text = fmt.Sprintf("%s of %d, %s", ordinal(q.Position), q.Of, text)
	}
	return text
}

// draw keeps the terminal's line up to date while the contender waits, until stop is called.
func (r *runner) draw() (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var q *consulsession.Queue
		for {
			select {
			case now := <-r.queue:
				q = &now
			case <-tick.C:
			case <-done:
				return
			}
			if q != nil && !r.started.Load() {
				now := time.Now()
				r.o.Status.Set(fmt.Sprintf("%s: waiting %s, %s", r.o.Name, formatDuration(now.Sub(time.Unix(0, r.since.Load())).Truncate(time.Second)), queueText(*q, now)))
			}
		}
	}()
	return func() { close(done); <-gone; r.o.Status.Clear() }
}

func ordinal(n int) string {
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			return fmt.Sprintf("%dst", n)
		case 2:
			return fmt.Sprintf("%dnd", n)
		case 3:
			return fmt.Sprintf("%drd", n)
		}
	}
	return fmt.Sprintf("%dth", n)
}

// exit makes the error, and so the exit code, of an outcome.
func (r *runner) exit(out supervisor.Outcome, c *consulsession.Contender) error {
	switch out.Kind {
	case supervisor.Ended:
		if out.TimedOut {
			return &exitError{code: out.Result.Exit}
		}
		if out.Status.Signaled() {
			return diedBy(out.Status.Signal())
		}
		if code := out.Status.ExitStatus(); code != 0 {
			return &exitError{code: code}
		}
		return nil
	case supervisor.HandedOver:
		return r.conflict(fmt.Errorf("the command was stopped: %w; not waiting (-n)", out.Err), "")
	case supervisor.NotFenced:
		return &exitError{code: exitLostAlive, what: fmt.Errorf("the last holder did not release, and could not be fenced: %w; nothing was started", out.Err),
			hint: "see to its processes, then run this again without --fence-cmd"}
	case supervisor.Interrupted:
		return diedBy(out.Signal)
	case supervisor.NotStarted:
		return notExecutable(r.path, out.Errno, out.Err)
	case supervisor.Lost:
		if out.LateBy > 0 {
			return &exitError{code: exitLostAlive, what: fmt.Errorf("the lock was lost and the command stopped, but up to %s after its lease: %w", out.LateBy.Round(time.Millisecond), out.Err),
				hint: "another copy may have run beside it; was this host stopped or starved?"}
		}
		return &exitError{code: exitLost, what: fmt.Errorf("the lock was lost and the command stopped: %w", out.Err)}
	case supervisor.LostAlive:
		return &exitError{code: exitLostAlive, what: fmt.Errorf("the lock was lost and the command is NOT known to be dead: %w", out.Err),
			hint: "look for its processes on this host"}
	case supervisor.NotAcquired:
		return r.notAcquired(out.Err, c)
	}
	return &exitError{code: exitInternal, what: out.Err}
}

func (r *runner) notAcquired(err error, c *consulsession.Contender) error {
	see := "to see it: " + commandLine(r.o.Prefix, "status "+r.o.Name)
	if held, ok := errors.AsType[*consulsession.HeldError](err); ok {
		return r.conflict(fmt.Errorf("the lock is %w; not waiting (-n)", held), fmt.Sprintf("to wait for it: %s -- %s", commandLine(r.o.Prefix, "run -w 30m "+r.o.Name), abbreviated(r.o.Command)))
	}
	if errors.Is(err, supervisor.ErrWaitOver) {
		return r.waitOver(see)
	}
	if done, ok := errors.AsType[*consulsession.DoneError](err); ok && done.Why == "never" && !r.tell.last.Started.IsZero() {
		return r.conflict(fmt.Errorf("the command was stopped: %w", done), see) // and it was ours
	} else if ok {
		return &exitError{code: exitOK, what: done, mild: true}
	}
	if missed, ok := errors.AsType[*consulsession.MissedError](err); ok {
		return r.missed(missed)
	}
	if paused, ok := errors.AsType[*consulsession.PausedError](err); ok {
		return r.conflict(fmt.Errorf("the lock is %w; not waiting (-n)", paused), r.resume())
	}
	if errors.Is(err, supervisor.ErrTooLate) {
		return r.conflict(fmt.Errorf("not started within the %s of --start-deadline", formatDuration(r.o.StartDeadline)), see)
	}
	if errors.Is(err, supervisor.ErrDrained) {
		return r.conflict(err, r.undrain())
	}
	if bad, ok := errors.AsType[*consulsession.RecordError](err); ok {
		return &exitError{code: exitConfig, what: fmt.Errorf("%w; nothing was run", bad), hint: "look at it, and if it may go: consul kv delete " + bad.Key}
	}
	if bad, ok := errors.AsType[*consulsession.CopiesError](err); ok {
		return &exitError{code: exitConfig, what: bad, hint: copiesHint(r.o.Prefix, bad)}
	}
	if foreign, ok := errors.AsType[*consulsession.ForeignKeyError](err); ok {
		return &exitError{code: exitConfig, what: foreign, hint: "choose another NAME or --prefix, or delete that key if it is yours: consul kv delete " + foreign.Key}
	}
	if bad, ok := errors.AsType[*consulsession.ConfigError](err); ok {
		return &exitError{code: exitConfig, what: bad, hint: "are --check, --session-node, --ttl and --datacenter right?"}
	}
	return consulProblem(err)
}

// missed is a conflict like others, unless the later period isn't due here for more than a whole one.
// Then one of the two clocks is wrong, and -q must not hide that nobody runs anything.
func (r *runner) missed(err *consulsession.MissedError) error {
	now := r.o.Now()
	start, bad := time.Parse(time.RFC3339, err.Record.Period)
	if p := r.o.Once.at(now); bad != nil || start.Sub(now) <= p.End.Sub(p.Start) {
		return r.conflict(err, "to see what ran: "+commandLine(r.o.Prefix, "history "+r.o.Name))
	}
	key := r.o.Prefix + "/" + r.o.Name + "/.period"
	if r.o.Copies > 0 {
		key = r.o.Prefix + "/" + r.o.Name + "/COPY/.period"
	}
	return &exitError{code: r.o.ConflictExit, what: fmt.Errorf("%w, which by this host's clock is %s ahead: nothing runs until then", err, short(start.Sub(now))),
		hint: "set the clock that is wrong; to forget that period: consul kv delete " + key}
}

// waitOver says what it waited for in vain.
func (r *runner) waitOver(see string) error {
	over := "the wait of " + formatDuration(r.o.Wait) + " is over"
	q := r.last.Load()
	switch state, _ := drain.Read(drain.Dirs(r.o.RuntimeDir), r.o.Now()); {
	case state.On:
		return r.conflict(fmt.Errorf("this host is %s; %s", state, over), r.undrain())
	case q != nil && q.Paused != nil:
		return r.conflict(fmt.Errorf("the lock is paused %s; %s", q.Paused, over), r.resume())
	case q == nil:
		return r.conflict(errors.New(over), see)
	}
	return r.conflict(fmt.Errorf("%s: %s", over, queueText(*q, time.Now())), see)
}

func (r *runner) undrain() string { return "to end that: " + undrainLine(r.o.RuntimeDir) }

// resume is how to end a pause.
func (r *runner) resume() string {
	return "to end that: " + commandLine(r.o.Prefix, "resume "+r.o.Name)
}

func copiesHint(prefix string, bad *consulsession.CopiesError) string {
	switch {
	case bad.Record.Copies == 0:
		return "wait until nobody uses it without --copies, or choose another NAME"
	case bad.Want == 0:
		return fmt.Sprintf("use --copies %d, or choose another NAME", bad.Record.Copies)
	}
	return fmt.Sprintf("use --copies %d, or change it for all: %s", bad.Record.Copies, commandLine(prefix, fmt.Sprintf("resize %s --copies %d", bad.Name, bad.Want)))
}

// conflict is exit 75, or what -E says; not if the command ran here and the lock was lost, which nobody
// may call a success.
func (r *runner) conflict(what error, hint string) error {
	if r.tell.last.Outcome == telling.Lost {
		return &exitError{code: exitLost, what: fmt.Errorf("the lock was lost and the command stopped; and then: %w", what), hint: hint}
	}
	return &exitError{code: r.o.ConflictExit, what: what, hint: hint, mild: true}
}

// diedBy ends onlyone as the command, or a waiting onlyone, was ended.
func diedBy(s syscall.Signal) error { return &exitError{code: 128 + int(s), signal: s} }

// findCommand looks CMD up before anything is asked of Consul.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil // the caller's PATH says so
	}
	if err == nil {
		return path, nil
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	switch {
	case errors.Is(err, exec.ErrNotFound) && strings.HasPrefix(name, "-"):
		return "", &exitError{code: exitNotFound, what: fmt.Errorf("cannot find %s in PATH", name), hint: "flags of onlyone stand before '--', the command after it"}
	case errors.Is(err, exec.ErrNotFound) && !strings.Contains(name, "/") && strings.Contains(name, " "):
		// As consul lock is given it.
		return "", &exitError{code: exitNotFound, what: fmt.Errorf("cannot find a command called %q in PATH", name), hint: "without a shell each word stands alone: -- " + name + "; with one: -- sh -c '...'"}
	case errors.Is(err, exec.ErrNotFound) && !strings.Contains(name, "/"):
		return "", &exitError{code: exitNotFound, what: fmt.Errorf("cannot find %s in PATH", name), hint: "give its full path"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return "", &exitError{code: exitNotFound, what: fmt.Errorf("cannot find %s", name), hint: "ls -l " + name}
	}
	return "", notExecutable(name, 0, err)
}

func notExecutable(path string, errno syscall.Errno, err error) error {
	hint := "ls -l " + path
	switch errno {
	case unix.ENOENT:
		return &exitError{code: exitNotFound, what: fmt.Errorf("cannot execute %s: not found, or its interpreter isn't", path), hint: hint}
	case unix.ENOEXEC:
		hint = "does the script begin with #! and its interpreter?"
	case unix.ETIMEDOUT:
		return &exitError{code: exitLost, what: err}
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		hint = "is a limit reached? ulimit -a"
	case 0:
		if errors.Is(err, fs.ErrPermission) {
			hint = "chmod +x " + path
		}
	}
	return &exitError{code: exitNotExecutable, what: fmt.Errorf("cannot execute %s: %w", path, err), hint: hint}
}

// shown is the command for people, cut to what a record needs.
func shown(command []string) string {
	s := strings.Join(command, " ")
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// handsOver says to whom a program hands its work, if it does: that work isn't a
// descendant, so it can't be stopped.
func handsOver(command string) string {
	switch filepath.Base(command) {
	case "docker", "podman", "nerdctl":
		return "a container engine"
	case "systemctl", "service", "systemd-run":
		return "systemd"
	case "at", "batch", "crontab":
		return "a scheduler"
	case "kubectl", "nomad":
		return "a cluster"
	case "ssh":
		return "another host"
	}
	return ""
}
