package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// A RunFunc does the work of "onlyone run". The error that it returns is shown and becomes
// the exit code: an *exitError has its own, any other error is 70.
type RunFunc func(context.Context, RunOptions) error

// RunOptions is what "onlyone run" was told. All that needs neither Consul nor arithmetic
// between the dials is checked.
type RunOptions struct {
	Name       string // of the lock, without Prefix
	BaseName   bool   // Name is the command's base name, none was given
	Host       string // empty: the host's own name
	RuntimeDir string // where drain leaves its file, beside the usual places
	Command    []string
	Prefix     string // without a '/' at its end

	NoWait        bool
	Wait          time.Duration // the longest wait; 0 without NoWait: for ever
	ConflictExit  int           // 0 to 255
	StartDeadline time.Duration // don't start later after the period began, or after the call; 0: whenever
	Splay         time.Duration
	Copies        int // 0: no copies

	Once Once

	Lease, KillAfter, TTL, Poll time.Duration
	Checks                      []string
	SessionNode                 string
	Explain                     bool // print the time budget on Stdout and end; Command may be empty

	Signal       syscall.Signal
	StopTimeout  time.Duration
	PIDNamespace bool
	MaxRuntime   time.Duration // 0: as long as it likes
	MinHold      time.Duration
	Restart      string // no, on-failure, always
	RestartDelay time.Duration
	MaxRestarts  int    // -1: no limit
	OnLost       string // exit, wait
	DropToken    bool

	FenceCmd, OnAcquire, OnRelease, OnLoss string // shell command lines
	HookTimeout                            time.Duration

	Notify string // standby, running, child
	Tell   TellFlags

	Quiet  bool
	JSON   bool // what goes to Stdout is to be JSON
	Consul ConsulFlags

	Now    func() time.Time // the wall clock
	Log    zerolog.Logger   // has the field name
	Status *StatusLine
	Stdout io.Writer
	Stderr io.Writer
}

// The defaults of the dials. Supervisor's own, which say where they come from, are the same.
const (
	defaultLease        = 20 * time.Second
	defaultKillAfter    = 4 * time.Second
	defaultTTL          = 10 * time.Second
	defaultPoll         = 2 * time.Second
	defaultRestartDelay = time.Second
	defaultHookTimeout  = 30 * time.Second
	defaultStopTimeout  = 30 * time.Second // what TimeoutStopSec of most units has room for (90s)
)

const maxCopies = consulsession.MaxCopies

// The categories of the help.
const (
	forWaiting = "Waiting"
	forOnce    = "Once"
	forHooks   = "Hooks (run by /bin/sh, bounded by the lease)"
	forLease   = "Lock and lease"
	forCommand = "Command"
	forTelling = "Messages"
	forConsul  = "Consul"
)

func (in *invocation) runCommand() *cli.Command {
	flag, boolean := valueFlag, boolFlag
	var (
		wait        = &durationValue{zeroOK: true}
		conflict    = &codeValue{exitConflict}
		prefix      = &prefixValue{defaultPrefix}
		lease       = &durationValue{d: defaultLease}
		killAfter   = &durationValue{d: defaultKillAfter, zeroOK: true}
		ttl         = &durationValue{d: defaultTTL}
		poll        = &durationValue{d: defaultPoll}
		sig         = &signalValue{syscall.SIGTERM}
		stopTimeout = &durationValue{d: defaultStopTimeout, zeroOK: true}

		splay         = &durationValue{zeroOK: true}
		startDeadline = &durationValue{}
		copies        = &countValue{low: 1, high: maxCopies}
		maxRuntime    = &durationValue{}
		minHold       = &durationValue{zeroOK: true}
		restart       = &choiceValue{word: "no", of: []string{"no", "on-failure", "always"}}
		restartDelay  = &durationValue{d: defaultRestartDelay, zeroOK: true}
		maxRestarts   = &countValue{n: -1, low: 0, high: 1_000_000}
		onLost        = &choiceValue{word: "exit", of: []string{"exit", "wait"}}
		hookTimeout   = &durationValue{d: defaultHookTimeout}
	)
	notify := &choiceValue{word: notifyStandby, of: []string{notifyStandby, notifyRunning, notifyChild}}
	text := func(category, name, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Category: category, Usage: usage, EnvVars: variable(name)}
	}
	once, readOnce := in.onceFlags()
	var verbosity int
	c := &cli.Command{
		Name:      "run",
		Usage:     "run a command while holding its lock",
		ArgsUsage: "[NAME] -- CMD [ARG...]",
		Flags: slices.Concat([]cli.Flag{
			boolean(forWaiting, "no-wait", "n", "don't wait if another host has the lock"),
			flag(forWaiting, "wait", "w", wait, "wait for the lock at most `DUR` (default: for ever)"),
			flag(forWaiting, "conflict-exit-code", "E", conflict, "exit with `N` if another host has the lock (75)"),
			copiesFlag(copies),
			flag(forWaiting, "splay", "", splay, "contend up to `DUR` later, by host and period"),
			flag(forWaiting, "start-deadline", "", startDeadline, "don't start `DUR` after the period's beginning"),
			text(forHost, "host", "call this host `NAME` in records (its host name)"),
			runtimeDirFlag(),
		}, once, []cli.Flag{
			flag(forLease, "prefix", "", prefix, "keep the lock's keys below `PATH` (onlyone)"),
			flag(forLease, "lease", "", lease, "believe the lock for `DUR` after a check (20s)"),
			flag(forLease, "kill-after", "k", killAfter, "if the lock is lost: SIGKILL `DUR` after SIGTERM (4s)"),
			flag(forLease, "ttl", "", ttl, "notice a silent host after `DUR` (10s, the minimum)"),
			flag(forLease, "poll", "", poll, "check the lock every `DUR` (2s)"),
			&cli.StringSliceFlag{Name: "check", Category: forLease, Usage: "lose the lock also if check `ID` fails (repeatable)", EnvVars: variable("check"), KeepSpace: true},
			&cli.StringFlag{Name: "session-node", Category: forLease, Usage: "tie the session to `NODE` instead of the agent's own", EnvVars: variable("session-node")},
			withoutVariables(boolean(forLease, "explain", "", "print the time budget and end"))[0],

			flag(forCommand, "signal", "s", sig, "ask CMD to stop with `SIG` (TERM)"),
			flag(forCommand, "stop-timeout", "", stopTimeout, "send SIGKILL `DUR` after the stop signal (30s)"),
			flag(forCommand, "max-runtime", "", maxRuntime, "stop CMD after `DUR`, SIGKILL --kill-after later"),
			flag(forCommand, "min-hold", "", minHold, "keep the lock for `DUR` at least, if CMD ends sooner"),
			flag(forCommand, "restart", "", restart, "start CMD again `WHEN`: on-failure, always (no)"),
			flag(forCommand, "restart-delay", "", restartDelay, "wait `DUR` before a restart, doubled up to 1m (1s)"),
			flag(forCommand, "max-restarts", "", maxRestarts, "after `N` restarts give the lock to the next host"),
			flag(forCommand, "on-lost", "", onLost, "if the lock was lost: `HOW`, exit or wait (exit)"),
			boolean(forCommand, "drop-consul-token", "", "don't show CMD Consul's token"),
			boolean(forCommand, "pid-namespace", "", "run CMD in a PID namespace of its own (as root)"),

			text(forHooks, "fence-cmd", "`CMD` must end with 0 if the last holder died"),
			text(forHooks, "on-acquire", "run `CMD` before the command"),
			text(forHooks, "on-release", "run `CMD` after the command, before the release"),
			text(forHooks, "on-loss", "run `CMD` when the lock is lost and the command dead"),
			flag(forHooks, "hook-timeout", "", hookTimeout, "stop each hook after `DUR` (30s)"),

			boolean(forTelling, "quiet", "q", "say only what went wrong"),
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Category: forTelling, Usage: "say what happens; -vv: each failed attempt, too", EnvVars: variable("verbose"), Count: &verbosity},
			flag(forTelling, "log-format", "", &in.logFormat, "write messages as `FORMAT`: human or json (human)"),
			boolean(forTelling, "json", "", "--log-format json; --explain as JSON, too"),
			flag(forTelling, "notify", "", notify, "up for systemd `WHEN`: standby, running, child"),
			text(forTelling, "result-file", "write how it ended to `FILE`, as JSON"),
			text(forTelling, "ping", "tell `URL`: /start, and /EXIT at the end"),
			text(forTelling, "ping-file", "read the URL of --ping from `FILE`"),
			text(forTelling, "metrics-listen", "serve /metrics, /healthz, /leader on `ADDR`"),
			text(forTelling, "metrics-file", "write metrics to `FILE`, for node_exporter"),
			withoutVariables(boolean(forTelling, "help-all", "", "print all flags"))[0],
		}, in.consulFlagList()),
	}
	c.Action = func(c *cli.Context) error {
		if c.Bool("help-all") {
			_, err := io.WriteString(in.stdout, commandHelp(in.runCommand(), true))
			return err
		}
		o := RunOptions{
			Command: in.command, Host: c.String("host"), RuntimeDir: c.String("runtime-dir"), Prefix: prefix.prefix, ConflictExit: conflict.code,
			Lease: lease.d, KillAfter: killAfter.d, TTL: ttl.d, Poll: poll.d,
			SessionNode: c.String("session-node"), Explain: c.Bool("explain"),
			Signal: sig.sig, StopTimeout: stopTimeout.d, PIDNamespace: c.Bool("pid-namespace"),
			MaxRuntime: maxRuntime.d, MinHold: minHold.d, Restart: restart.word, RestartDelay: restartDelay.d, MaxRestarts: maxRestarts.n,
			OnLost: onLost.word, DropToken: c.Bool("drop-consul-token"),
			FenceCmd: c.String("fence-cmd"), OnAcquire: c.String("on-acquire"), OnRelease: c.String("on-release"), OnLoss: c.String("on-loss"),
			HookTimeout: hookTimeout.d, StartDeadline: startDeadline.d, Splay: splay.d, Copies: copies.n,
			Tell: TellFlags{Ping: c.String("ping"), PingFile: c.String("ping-file"), ResultFile: c.String("result-file"),
				MetricsListen: c.String("metrics-listen"), MetricsFile: c.String("metrics-file")},
			Notify: notify.word, JSON: c.Bool("json"), Stdout: in.stdout, Stderr: in.stderr, Now: in.app.now,
		}
		var err error
		if o.Once, err = readOnce(c); err != nil {
			return err
		}
		if err := o.checkOnce(); err != nil {
			return err
		}
		hooked := o.FenceCmd != "" || o.OnAcquire != "" || o.OnRelease != "" || o.OnLoss != ""
		switch { // typed: a variable may be there for other runs
		case o.Restart == "no" && (in.typed["restart-delay"] > 0 || in.typed["max-restarts"] > 0):
			return usageError("try: --restart on-failure", "--restart-delay and --max-restarts have no effect without --restart")
		case !hooked && in.typed["hook-timeout"] > 0:
			return usageError("leave it out, or see --help-all", "--hook-timeout has no effect without a hook")
		}
		switch url, file := in.typed["ping"] > 0, in.typed["ping-file"] > 0; {
		case o.Tell.Ping == "" || o.Tell.PingFile == "":
		case url && !file:
			o.Tell.PingFile = ""
		case file && !url:
			o.Tell.Ping = ""
		default:
			return usageError("leave one out", "--ping and --ping-file both say what to ping")
		}
		if err := o.setName(c.Args().Slice(), in.dashes); err != nil {
			return err
		}
		if err := in.setWait(&o, c.Bool("no-wait"), c.IsSet("wait"), wait.d); err != nil {
			return err
		}
		if o.Checks, err = checkIDs(c); err != nil {
			return err
		}
		if o.Consul, err = consulFlags(c); err != nil {
			return err
		}
		if c.Bool("verbose") {
			verbosity = max(verbosity, 1)
		} else {
			verbosity = 0
		}
		if o.Quiet, err = in.beats("quiet", c.Bool("quiet"), "verbose", verbosity > 0); err != nil {
			return err
		}
		jsonLog := in.logFormat.word == "json" || o.JSON && in.typed["log-format"] == 0
		o.Log, o.Status = newOutput(outputConfig{quiet: o.Quiet, verbosity: verbosity, json: jsonLog, stderr: in.stderr}, o.Name)
		in.log = &o.Log
		err = in.app.run(c.Context, o)
		o.Status.Clear()
		return err
	}
	return c
}

// checkIDs is what --check says: an ID may have spaces.
func checkIDs(c *cli.Context) (ids []string, err error) {
	for _, check := range c.StringSlice("check") {
		for id := range strings.SplitSeq(check, "\n") { // one a line, so that the variable can hold several
			if id == "" {
				return nil, usageError("try: --check serfHealth", "--check is empty")
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// valueFlag is a flag whose value checks itself. Its variable is ONLYONE_ and its name.
func valueFlag(category, name, short string, value cli.Generic, usage string) cli.Flag {
	f := &cli.GenericFlag{Name: name, Category: category, Usage: usage, Value: value, EnvVars: variable(name)}
	if short != "" {
		f.Aliases = []string{short}
	}
	return f
}

// copiesFlag has no variable in the command of a copy, whose environment says how many there
// are: what that command starts with an onlyone isn't meant.
func copiesFlag(value cli.Generic) cli.Flag {
	f := &cli.GenericFlag{Name: "copies", Category: forWaiting, Usage: "let `N` run at once, each with its ONLYONE_COPY", Value: value}
	if os.Getenv("ONLYONE_COPY") == "" {
		f.EnvVars = variable("copies")
	}
	return f
}

// boolFlag is one that is on or off.
func boolFlag(category, name, short, usage string) cli.Flag {
	f := &cli.BoolFlag{Name: name, Category: category, Usage: usage, EnvVars: variable(name)}
	if short != "" {
		f.Aliases = []string{short}
	}
	return f
}

// setName settles the name of the lock from what stands before "--".
func (o *RunOptions) setName(words []string, dashes bool) error {
	switch {
	case o.Explain && len(o.Command) == 0 && len(words) == 0:
		o.Name = "NAME"
		return nil
	case !dashes && !o.Explain:
		return noDashes(words)
	case len(words) > 1:
		return usageError(fmt.Sprintf("try: onlyone run %s -- %s", words[0], abbreviated(o.Command)),
			"want one NAME before '--', got %d: %s", len(words), strings.Join(words, ", "))
	case len(o.Command) == 0 && !o.Explain:
		name := "NAME"
		if len(words) == 1 && checkName(words[0]) == nil {
			name = words[0]
		}
		return usageError(fmt.Sprintf("try: onlyone run %s -- CMD", name), "there is no command after '--'")
	case len(o.Command) > 0 && o.Command[0] == "":
		return usageError("", "the command after '--' is an empty string")
	case len(words) == 1:
		o.Name = words[0]
		return checkName(o.Name)
	}
	var err error
	o.Name, err = nameFor(o.Command)
	o.BaseName = true
	return err
}

func noDashes(words []string) error {
	try := "onlyone run NAME -- CMD"
	if len(words) > 0 && isPath(words[0]) {
		try = "onlyone run NAME -- " + abbreviated(words)
	} else if len(words) > 0 && checkName(words[0]) == nil {
		try = fmt.Sprintf("onlyone run %s -- CMD", words[0])
		if len(words) > 1 {
			try = fmt.Sprintf("onlyone run %s -- %s", words[0], abbreviated(words[1:]))
		}
	}
	return usageError("try: "+try, "there is no '--' before the command")
}

// isPath reports whether a word must be a command rather than a NAME.
func isPath(word string) bool { return strings.HasPrefix(word, "/") || strings.HasPrefix(word, ".") }

// abbreviated is a command as an example in a message.
func abbreviated(command []string) string {
	switch {
	case len(command) == 0 || strings.ContainsAny(command[0], " '\"\\\n\t$"):
		return "CMD"
	case len(command) == 1:
		return command[0]
	}
	return command[0] + " ..."
}

// setWait settles --no-wait and --wait. "-w 0" is the same as "-n".
func (in *invocation) setWait(o *RunOptions, noWait, hasWait bool, wait time.Duration) error {
	var err error
	if o.NoWait, err = in.beats("no-wait", noWait, "wait", hasWait); err != nil {
		return err
	}
	if hasWait && !o.NoWait {
		o.Wait, o.NoWait = wait, wait == 0
	}
	return nil
}

// beats reports whether flag a counts, of two that contradict each other: the one that was
// typed last, and a typed one before what a variable says. Two variables are refused.
func (in *invocation) beats(a string, aOn bool, b string, bOn bool) (bool, error) {
	switch {
	case !aOn || !bOn:
		return aOn, nil
	case in.typed[a] != in.typed[b]:
		return in.typed[a] > in.typed[b], nil
	}
	return false, usageError("unset one", "the variables %s and %s contradict each other", variable(a)[0], variable(b)[0])
}
