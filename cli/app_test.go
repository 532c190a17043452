package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

// A recorder stands in for what does the work of a command.
type recorder struct {
	ran  []RunOptions
	fail error
}

func (r *recorder) run(_ context.Context, o RunOptions) error {
	r.ran = append(r.ran, o)
	return r.fail
}

// only is the one run that there was.
func (r *recorder) only(t *testing.T) RunOptions {
	t.Helper()
	if len(r.ran) != 1 {
		t.Fatalf("ran %d times, want once", len(r.ran))
	}
	return r.ran[0]
}

type result struct {
	code           int
	stdout, stderr string
	recorder
}

// onlyone runs one command line.
func onlyone(t testing.TB, args ...string) *result {
	t.Helper()
	r := &result{}
	return r.main(args...)
}

func (r *result) main(args ...string) *result {
	var stdout, stderr bytes.Buffer
	app := New("1.2.3", r.run)
	r.code = app.Main(context.Background(), append([]string{"onlyone"}, args...), &stdout, &stderr)
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

// TestMain takes what the tests' own surroundings would change away.
func TestMain(m *testing.M) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "ONLYONE_") || slices.Contains([]string{"NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "NO_COLOR"}, name) {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// refused checks that a command line is refused as promised: exit 64, nothing on stdout,
// one line on stderr that holds all of want, and nothing was run.
func (r *result) refused(t *testing.T, want ...string) {
	t.Helper()
	if r.code != exitUsage {
		t.Errorf("exit %d, want %d", r.code, exitUsage)
	}
	if r.stdout != "" {
		t.Errorf("stdout: %q, want nothing", r.stdout)
	}
	if strings.Count(r.stderr, "\n") != 1 || !strings.HasSuffix(r.stderr, "\n") || !strings.HasPrefix(r.stderr, "onlyone: ") {
		t.Errorf("stderr isn't one line of onlyone's: %q", r.stderr)
	}
	for _, w := range want {
		if !strings.Contains(r.stderr, w) {
			t.Errorf("stderr: %q, want %q in it", r.stderr, w)
		}
	}
	if len(r.ran) > 0 {
		t.Errorf("ran %v", r.ran[0].Command)
	}
}

// TestLibraryTable is the table of what urfave/cli v2.27.7 does with a command line like
// ours, row by row, in its order; each row's remedy is what is checked.
func TestLibraryTable(t *testing.T) {
	args := func(s string) []string { return strings.Fields(s) }
	ran := func(t *testing.T, r *result, name string, command ...string) RunOptions {
		t.Helper()
		o := r.only(t)
		if r.code != 0 || o.Name != name || !slices.Equal(o.Command, command) {
			t.Fatalf("exit %d, NAME %q, command %q, want 0, %q, %q; stderr %q", r.code, o.Name, o.Command, name, command, r.stderr)
		}
		if r.stdout != "" || r.stderr != "" {
			t.Errorf("stdout %q, stderr %q, want silence", r.stdout, r.stderr)
		}
		return o
	}
	t.Run("run NAME -- sh -c x", func(t *testing.T) {
		ran(t, onlyone(t, args("run NAME -- sh -c x")...), "NAME", "sh", "-c", "x")
		ran(t, onlyone(t, args("run NAME -- sh -c x -- y --")...), "NAME", "sh", "-c", "x", "--", "y", "--")
	})
	t.Run("run --lock N -- sh", func(t *testing.T) { // a flag with a value just before --
		onlyone(t, args("run --lock N -- sh")...).refused(t, "unknown flag --lock", "onlyone run NAME -- CMD")
		o := ran(t, onlyone(t, args("run --prefix N -- report sh")...), "report", "report", "sh")
		if o.Prefix != "N" || !o.BaseName {
			t.Errorf("prefix %q, base name %v", o.Prefix, o.BaseName)
		}
		onlyone(t, args("run NAME --prefix -- sh")...).refused(t, "--prefix needs a value")
	})
	t.Run("run -- sh -c x", func(t *testing.T) {
		onlyone(t, args("run -- sh -c x")...).refused(t, `NAME is missing`, `"sh"`, "try: onlyone run my-job -- sh ...")
	})
	t.Run("run NAME --timeout 5s -- sh", func(t *testing.T) {
		o := ran(t, onlyone(t, args("run NAME --wait 5s -- sh")...), "NAME", "sh")
		if o.Wait != 5*time.Second {
			t.Errorf("wait %v", o.Wait)
		}
		o = ran(t, onlyone(t, args("run NAME --stop-timeout 5s -n -- sh")...), "NAME", "sh")
		if o.StopTimeout != 5*time.Second || !o.NoWait {
			t.Errorf("stop-timeout %v, no-wait %v", o.StopTimeout, o.NoWait)
		}
		onlyone(t, args("run NAME --timeout 5s -- sh")...).refused(t, "unknown flag --timeout", "-w/--wait")
	})
	t.Run("run help -- x, run h", func(t *testing.T) {
		ran(t, onlyone(t, args("run help -- x")...), "help", "x")
		ran(t, onlyone(t, args("run h -- x")...), "h", "x")
		ran(t, onlyone(t, args("run wait -- x")...), "wait", "x") // a flag's name
		onlyone(t, args("run h")...).refused(t, "no '--'", "onlyone run h -- CMD")
	})
	t.Run("run --bad", func(t *testing.T) {
		onlyone(t, args("run --bad")...).refused(t, "unknown flag --bad")
		onlyone(t, args("run --bad a -- x")...).refused(t, "unknown flag --bad")
	})
	t.Run("rnu", func(t *testing.T) {
		onlyone(t, args("rnu a -- x")...).refused(t, `unknown command "rnu"`, "did you mean: onlyone run?")
	})
	t.Run("status --json with a global --json", func(t *testing.T) {
		for _, line := range []string{"version --json", "run --json --explain"} {
			if r := onlyone(t, args(line)...); r.code != 0 {
				t.Errorf("%s: exit %d, %q", line, r.code, r.stderr)
			}
		}
		onlyone(t, args("--json version")...).refused(t, "unknown flag --json", "stands after the command: onlyone run --json")
	})
	t.Run("-w 5 on DurationFlag", func(t *testing.T) {
		if o := ran(t, onlyone(t, args("run -w 5 a -- x")...), "a", "x"); o.Wait != 5*time.Second {
			t.Errorf("wait %v", o.Wait)
		}
	})
	t.Run("--env A=1,B=2", func(t *testing.T) { // the repeatable flag that keeps commas
		o := ran(t, onlyone(t, "run", "--check", "a=1,b=2", "a", "--check=serfHealth", "--", "x"), "a", "x")
		if !slices.Equal(o.Checks, []string{"a=1,b=2", "serfHealth"}) {
			t.Errorf("checks %q", o.Checks)
		}
	})
	t.Run(`cli.Exit("…",75)`, func(t *testing.T) {
		exit := cli.OsExiter
		defer func() { cli.OsExiter = exit }()
		cli.OsExiter = func(code int) { t.Errorf("the library exits with %d", code) }
		deferred := false
		app := New("", func(context.Context, RunOptions) error {
			defer func() { deferred = true }()
			return &exitError{code: exitConflict, what: errors.New("held by web-2")}
		})
		var stdout, stderr bytes.Buffer
		code := app.Main(context.Background(), args("onlyone run a -- x"), &stdout, &stderr)
		if code != exitConflict || !deferred || stderr.String() != "onlyone: a: held by web-2\n" {
			t.Errorf("exit %d, deferred %v, %q", code, deferred, stderr.String())
		}
		app = New("", func(context.Context, RunOptions) error { return cli.Exit("library's", 3) })
		if code := app.Main(context.Background(), args("onlyone run a -- x"), &stdout, &stderr); code != exitInternal {
			t.Errorf("exit %d for an error of another kind, want %d", code, exitInternal)
		}
	})
	t.Run("-nw 5s", func(t *testing.T) {
		for _, line := range []string{"run -nw 5s NAME -- x", "run NAME -nw 5s -- x", "run NAME -nw5s -- x", "run -nw=5s NAME -- x", "run -n NAME -w 5s -- x"} {
			if o := ran(t, onlyone(t, args(line)...), "NAME", "x"); o.Wait != 5*time.Second || o.NoWait {
				t.Errorf("%s: wait %v, no-wait %v; the last one counts", line, o.Wait, o.NoWait)
			}
		}
		o := ran(t, onlyone(t, args("run NAME -qE 0 -- x")...), "NAME", "x")
		if !o.Quiet || o.ConflictExit != 0 {
			t.Errorf("quiet %v, exit %d", o.Quiet, o.ConflictExit)
		}
		onlyone(t, args("run NAME -qE -- x")...).refused(t, "-E (in -qE) needs a value")
		onlyone(t, args("run NAME -qz -- x")...).refused(t, "unknown flag -qz")
	})
	t.Run("run --lock a sh -c x --generate-bash-completion", func(t *testing.T) {
		ran(t, onlyone(t, args("run a -- sh -c x --generate-bash-completion")...), "a", "sh", "-c", "x", "--generate-bash-completion")
		onlyone(t, args("run a --generate-bash-completion -- sh")...).refused(t, "unknown flag")
	})
	t.Run("-v", func(t *testing.T) {
		for _, line := range []string{"-V", "--version", "version", "-V run a -- x"} {
			r := onlyone(t, args(line)...)
			if r.code != 0 || !strings.HasPrefix(r.stdout, "onlyone 1.2.3 (") || r.stderr != "" || len(r.ran) > 0 {
				t.Errorf("%s: exit %d, %q, %q", line, r.code, r.stdout, r.stderr)
			}
		}
		onlyone(t, "-v").refused(t, "unknown flag -v", "onlyone -V")
		o := onlyone(t, args("run -v a -- x")...).only(t)
		if o.Log.GetLevel() != zerolog.InfoLevel {
			t.Errorf("-v: level %v", o.Log.GetLevel())
		}
	})
	t.Run(`ONLYONE_X=""`, func(t *testing.T) {
		for _, name := range []string{"ONLYONE_WAIT", "ONLYONE_NO_WAIT", "ONLYONE_PREFIX", "ONLYONE_CHECK", "ONLYONE_SIGNAL", "ONLYONE_LOG_FORMAT", "ONLYONE_SESSION_NODE"} {
			t.Setenv(name, "")
		}
		o := ran(t, onlyone(t, args("run a -- x")...), "a", "x")
		if o.NoWait || o.Wait != 0 || o.Prefix != defaultPrefix || len(o.Checks) > 0 || o.Signal != syscall.SIGTERM {
			t.Errorf("%+v", o)
		}
	})
	t.Run("Required flag missing", func(t *testing.T) {
		onlyone(t, "run").refused(t, "no '--'", "try: onlyone run NAME -- CMD")
	})
}

func TestBadInput(t *testing.T) {
	long := strings.Repeat("n", 300)
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"nothing", nil, []string{"no command given", "onlyone run NAME -- CMD", "--help"}},
		{"no command of ours", []string{"--", "ls"}, []string{"try: onlyone run NAME -- CMD"}},
		{"unknown command", []string{"frobnicate"}, []string{`unknown command "frobnicate"`, "onlyone --help"}},
		{"a lock for a command", []string{"backup", "--", "restic"}, []string{`try: onlyone run backup -- restic`}},
		{"a command with control characters", []string{"\x1b[2J\n"}, []string{`unknown command "\x1b[2J\n"`}},
		{"no --", []string{"run", "backup", "restic", "backup"}, []string{"no '--' before the command", "try: onlyone run backup -- restic ..."}},
		{"no --, and flags of the command", []string{"run", "backup", "restic", "--tag", "x"}, []string{"no '--'", "onlyone run backup -- restic"}},
		{"no --, a path", []string{"run", "/bin/backup", "--tag", "x"}, []string{"no '--'", "onlyone run NAME -- /bin/backup"}},
		{"no --, a shell", []string{"run", "sh", "-c", "x"}, []string{"unknown flag -c", "no shell", "-- sh -c"}},
		{"no command", []string{"run", "backup", "--"}, []string{"no command after '--'", "try: onlyone run backup -- CMD"}},
		{"no NAME and no command", []string{"run", "--"}, []string{"no command after '--'", "try: onlyone run NAME -- CMD"}},
		{"an empty command", []string{"run", "backup", "--", ""}, []string{"empty string"}},
		{"two NAMEs", []string{"run", "a", "b", "--", "x"}, []string{"want one NAME before '--', got 2: a, b"}},
		{"-", []string{"run", "-", "--", "x"}, []string{`"-" is neither a flag nor a NAME`}},
		{"---", []string{"run", "a", "---", "--", "x"}, []string{`unknown flag ---`}},
		{"a flag with a space", []string{"run", "a", "-q x", "--", "x"}, []string{`"-q x" is neither`}},

		{"NAME with a space", []string{"run", "a b", "--", "x"}, []string{`onlyone: run: NAME "a b" has a space; use letters, digits, '.', '_' and '-': try "a-b"`}},
		{"NAME with ..", []string{"run", "..", "--", "x"}, []string{`NAME ".." has the part ".."`}},
		{"NAME with .. inside", []string{"run", "a/../b", "--", "x"}, []string{`has the part ".."`, `try "a/b"`}},
		{"NAME with a leading dot", []string{"run", ".lock", "--", "x"}, []string{`NAME ".lock" has a part that begins with '.'`, `try "lock"`}},
		{"NAME with a leading ~", []string{"run", "a/~queue", "--", "x"}, []string{`begins with '~'`, `try "a/queue"`}},
		{"NAME of 300 characters", []string{"run", long, "--", "x"}, []string{"is 300 bytes long, the most is 200"}},
		{"NAME with a control character", []string{"run", "a\x1b[2Jb", "--", "x"}, []string{`has the character '\x1b'`}},
		{"NAME with an empty part", []string{"run", "a//b", "--", "x"}, []string{"an empty part", `try "a/b"`}},
		{"an empty NAME", []string{"run", "", "--", "x"}, []string{`NAME "" is empty`}},
		{"NAME like a path", []string{"run", "/bin/x", "--", "x"}, []string{`begins with '/'`, `try "bin/x"`}},

		{"no NAME for a shell", []string{"run", "--", "/bin/bash", "-c", "x"}, []string{`"bash"`, "a shell", "try: onlyone run my-job -- /bin/bash ..."}},
		{"no NAME for an interpreter", []string{"run", "--", "python3.11", "/opt/report.py"}, []string{`"python3.11"`, "an interpreter", "try: onlyone run report.py -- python3.11 ..."}},
		{"no NAME for a wrapper", []string{"run", "--", "sudo", "-u", "app", "/opt/report"}, []string{"starts another", "try: onlyone run report -- sudo ..."}},
		{"no NAME for an odd command", []string{"run", "--", "/opt/my report"}, []string{`base name "my report" can't be one: it has a space`, "try: onlyone run my-report -- "}},
		{"no NAME for /", []string{"run", "--", "/"}, []string{"NAME is missing"}},
		{"no NAME for .", []string{"run", "--", "."}, []string{"NAME is missing"}},

		{"-w -1s", []string{"run", "-w", "-1s", "a", "--", "x"}, []string{`-w "-1s" is negative`, "90s"}},
		{"-w abc", []string{"run", "a", "-w", "abc", "--", "x"}, []string{`-w "abc" is not a duration`, "1h30m"}},
		{"-w NaN", []string{"run", "a", "-w", "NaN", "--", "x"}, []string{`"NaN" is not a duration`}},
		{"-w Inf", []string{"run", "a", "--wait=Inf", "--", "x"}, []string{`--wait "Inf" is not a duration`}},
		{"-w 999999w", []string{"run", "a", "-w999999w", "--", "x"}, []string{`-w "999999w" is too long`}},
		{"-w without a value", []string{"run", "a", "-w", "--", "x"}, []string{"-w needs a value (DUR)"}},
		{"--lease 0", []string{"run", "a", "--lease", "0", "--", "x"}, []string{`--lease "0" is not more than zero`}},
		{"-E 300", []string{"run", "-E", "300", "a", "--", "x"}, []string{`-E "300" is not an exit code`, "0 to 255"}},
		{"-E -1", []string{"run", "-E", "-1", "a", "--", "x"}, []string{`-E "-1" is not an exit code`}},
		{"-s FOO", []string{"run", "-s", "FOO", "a", "--", "x"}, []string{`-s "FOO" is not a signal`, "TERM"}},
		{"-s 0", []string{"run", "-s", "0", "a", "--", "x"}, []string{`-s "0" is not a signal`}},
		{"-s STOP", []string{"run", "--signal", "STOP", "a", "--", "x"}, []string{`--signal "STOP" suspends`}},
		{"--log-format xml", []string{"run", "--log-format", "xml", "a", "--", "x"}, []string{`--log-format "xml" is not one of human, json`}},
		{"--prefix /x", []string{"run", "--prefix", "/x", "a", "--", "x"}, []string{`--prefix "/x" begins with '/'`, `try "x"`}},
		{"--prefix empty", []string{"run", "--prefix=", "a", "--", "x"}, []string{`--prefix "" is empty`}},
		{"--fence-cmd empty", []string{"run", "--fence-cmd", "", "a", "--", "x"}, []string{"--fence-cmd is empty", "unset?"}},
		{"--result-file empty", []string{"run", "--result-file=", "a", "--", "x"}, []string{"--result-file is empty"}},
		{"--runtime-dir empty", []string{"drain", "--runtime-dir", ""}, []string{"--runtime-dir is empty"}}, // it would drain the whole host
		{"--check empty", []string{"run", "--check", "", "a", "--", "x"}, []string{"--check is empty"}},
		{"--check empty, doctor's", []string{"doctor", "--check", ""}, []string{"--check is empty"}},
		{"--http-addr with an empty one", []string{"run", "--http-addr", "a:1,,b:2", "a", "--", "x"}, []string{"empty address"}},
		{"--no-wait=maybe", []string{"run", "--no-wait=maybe", "a", "--", "x"}, []string{"--no-wait=maybe: say --no-wait or --no-wait=false"}},

		{"--wiat", []string{"run", "--wiat", "5s", "a", "--", "x"}, []string{"unknown flag --wiat; did you mean --wait?"}},
		{"--kill", []string{"run", "--kill", "5s", "a", "--", "x"}, []string{"did you mean --kill-after?"}},
		{"--exit-code", []string{"run", "a", "--exit-code=5", "--", "x"}, []string{"unknown flag --exit-code; did you mean --conflict-exit-code?"}},
		{"--stale", []string{"run", "--stale", "a", "--", "x"}, []string{"unknown flag --stale", "stale reads"}},
		{"consul lock -try", []string{"run", "-try=5s", "a", "--", "x"}, []string{"unknown flag -try", "-w 30s"}},
		{"flock --nonblock", []string{"run", "--nonblock", "a", "--", "x"}, []string{"try: -n"}},
		{"a long unknown flag", []string{"run", "--" + long, "a", "--", "x"}, []string{"unknown flag"}},
		{"-n before the command", []string{"-n", "run", "a", "--", "x"}, []string{"unknown flag -n", "onlyone run -n"}},
		{"version with arguments", []string{"version", "x"}, []string{"try: onlyone version"}},
		{"version --", []string{"version", "--", "x"}, []string{"try: onlyone version"}},
		{"version -n", []string{"version", "-n"}, []string{"unknown flag -n"}},
		{"help for nothing", []string{"help", "frobnicate"}, []string{`unknown command "frobnicate"`}},
		{"a lock that is called like a command, almost", []string{"hello", "--", "echo", "hi"}, []string{`unknown command "hello"; try: onlyone run hello -- echo ...`}},
		{"a long dash", []string{"run", "hello", "—", "ls", "-l"}, []string{`"—" has a long dash in the place of '--'; type two hyphens`}},
		{"a long dash and a hyphen", []string{"run", "hello", "–-", "echo"}, []string{`"–-" has a long dash`}},
		{"a flag with a long dash", []string{"run", "—wait", "5m", "a", "--", "x"}, []string{`"—wait" has a long dash`}},

		// What to type next is for the same prefix: under the default one it is another lock.
		{"resize without --copies", []string{"resize", "--prefix", "x", "a"}, []string{"try: onlyone resize a --copies 4 --prefix x"}},
		{"status --watch of two", []string{"status", "--prefix", "x", "--watch", "a", "b"}, []string{"try: onlyone status --watch a --prefix x"}},
		{"ls of two", []string{"ls", "--prefix", "x", "a", "b"}, []string{"try: onlyone ls a --prefix x"}},
	} {
		t.Run(test.name, func(t *testing.T) { onlyone(t, test.args...).refused(t, test.want...) })
	}
}

func TestBadVariables(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"ONLYONE_WAIT", "soon", `the variable ONLYONE_WAIT: "soon" is not a duration`},
		{"ONLYONE_LEASE", "-5s", `the variable ONLYONE_LEASE: "-5s" is negative`},
		{"ONLYONE_NO_WAIT", "perhaps", `the variable ONLYONE_NO_WAIT: "perhaps" is neither true nor false`},
		{"ONLYONE_CONFLICT_EXIT_CODE", "256", `the variable ONLYONE_CONFLICT_EXIT_CODE: "256" is not an exit code`},
		{"ONLYONE_SIGNAL", "FOO", `the variable ONLYONE_SIGNAL: "FOO" is not a signal`},
		{"ONLYONE_PREFIX", "a b", `the variable ONLYONE_PREFIX: "a b" has a space`},
		{"ONLYONE_LOG_FORMAT", "xml", `the variable ONLYONE_LOG_FORMAT: "xml" is not one of human, json`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(test.name, test.value)
			onlyone(t, "run", "a", "--", "x").refused(t, test.want)
			if r := onlyone(t, "version"); r.code != 0 {
				t.Errorf("version minds it, too: %q", r.stderr)
			}
		})
	}
	t.Run("contradiction", func(t *testing.T) {
		t.Setenv("ONLYONE_WAIT", "5s")
		t.Setenv("ONLYONE_NO_WAIT", "true")
		onlyone(t, "run", "a", "--", "x").refused(t, "the variables ONLYONE_NO_WAIT and ONLYONE_WAIT contradict each other")
		if o := onlyone(t, "run", "a", "-n", "--", "x").only(t); !o.NoWait || o.Wait != 0 {
			t.Errorf("-n doesn't beat the variables")
		}
		if o := onlyone(t, "run", "a", "-w", "9s", "--", "x").only(t); o.NoWait || o.Wait != 9*time.Second {
			t.Errorf("-w doesn't beat the variables")
		}
	})
}

// options are the parts of RunOptions that can be compared.
func options(o RunOptions) RunOptions {
	o.Log, o.Status, o.Stdout, o.Stderr, o.Now = zerolog.Logger{}, nil, nil, nil, nil
	return o
}

func TestRunOptions(t *testing.T) {
	defaults := RunOptions{
		Once: Once{Retry: "on-crash", Early: -1}, Restart: "no", RestartDelay: time.Second, MaxRestarts: -1, OnLost: "exit", HookTimeout: 30 * time.Second, Notify: "standby",
		Name: "a", Command: []string{"x"}, Prefix: "onlyone", ConflictExit: 75,
		Lease: 20 * time.Second, KillAfter: 4 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second,
		Signal: syscall.SIGTERM, StopTimeout: 30 * time.Second,
	}
	for _, test := range []struct {
		line string // before "-- x"
		env  string
		want func(*RunOptions)
	}{
		{line: "a"},
		{"", "", func(o *RunOptions) { o.Name, o.BaseName = "x", true }},
		{"-n a", "", func(o *RunOptions) { o.NoWait = true }},
		{"a --no-wait", "", func(o *RunOptions) { o.NoWait = true }},
		{"a -no-wait", "", func(o *RunOptions) { o.NoWait = true }},
		{"a", "ONLYONE_NO_WAIT=1", func(o *RunOptions) { o.NoWait = true }},
		{"a -n=false", "ONLYONE_NO_WAIT=1", func(o *RunOptions) {}},
		{"a -w 0", "", func(o *RunOptions) { o.NoWait = true }},
		{"a -w 1.5", "", func(o *RunOptions) { o.Wait = 1500 * time.Millisecond }},
		{"a -wait=1d", "", func(o *RunOptions) { o.Wait = 24 * time.Hour }},
		{"a", "ONLYONE_WAIT=5m", func(o *RunOptions) { o.Wait = 5 * time.Minute }},
		{"a -w 1m", "ONLYONE_WAIT=5m", func(o *RunOptions) { o.Wait = time.Minute }},
		{"a -w 1m --wait 2m", "", func(o *RunOptions) { o.Wait = 2 * time.Minute }},
		{"a -w 1m -n", "", func(o *RunOptions) { o.NoWait = true }},
		{"a -E 0", "", func(o *RunOptions) { o.ConflictExit = 0 }},
		{"a --conflict-exit-code=255", "", func(o *RunOptions) { o.ConflictExit = 255 }},
		{"a --prefix batch/", "", func(o *RunOptions) { o.Prefix = "batch" }},
		{"a --prefix ops/jobs", "", func(o *RunOptions) { o.Prefix = "ops/jobs" }},
		{"a", "ONLYONE_PREFIX=batch", func(o *RunOptions) { o.Prefix = "batch" }},
		{"team/db/a", "", func(o *RunOptions) { o.Name = "team/db/a" }},
		{"a --lease 30s -k 2 --ttl 1m --poll 500ms", "", func(o *RunOptions) {
			o.Lease, o.KillAfter, o.TTL, o.Poll = 30*time.Second, 2*time.Second, time.Minute, 500*time.Millisecond
		}},
		{"a -k 0 --stop-timeout 0", "", func(o *RunOptions) { o.KillAfter, o.StopTimeout = 0, 0 }},
		{"a", "ONLYONE_KILL_AFTER=2s", func(o *RunOptions) { o.KillAfter = 2 * time.Second }},
		{"a --check serfHealth --check service:web,1", "ONLYONE_CHECK=other", func(o *RunOptions) { o.Checks = []string{"serfHealth", "service:web,1"} }},
		{"a", "ONLYONE_CHECK=serfHealth\nMemory usage", func(o *RunOptions) { o.Checks = []string{"serfHealth", "Memory usage"} }},
		{"a --session-node n1 --pid-namespace --explain", "", func(o *RunOptions) { o.SessionNode, o.PIDNamespace, o.Explain = "n1", true, true }},
		{"a -s INT", "", func(o *RunOptions) { o.Signal = syscall.SIGINT }},
		{"a --signal sigquit", "", func(o *RunOptions) { o.Signal = syscall.SIGQUIT }},
		{"a -s 12", "", func(o *RunOptions) { o.Signal = 12 }},
		{"a -q", "", func(o *RunOptions) { o.Quiet = true }},
		{"a -qv", "", func(o *RunOptions) {}},
		{"a -vq", "", func(o *RunOptions) { o.Quiet = true }},
		{"a -v", "ONLYONE_QUIET=true", func(o *RunOptions) {}},
		{"a --json", "", func(o *RunOptions) { o.JSON = true }},
		{"a --http-addr h1:8500,https://h2:8501 -http-addr=h3", "", func(o *RunOptions) {
			o.Consul.Addresses = []string{"h1:8500", "https://h2:8501", "h3"}
		}},
		{"a --token t --token-file tf --ca-file caf --ca-path cap --client-cert cc --client-key ck", "", func(o *RunOptions) {
			o.Consul = ConsulFlags{Token: "t", TokenFile: "tf", CAFile: "caf", CAPath: "cap", ClientCert: "cc", ClientKey: "ck"}
		}},
		{"a --tls-server-name sn --datacenter dc2 --namespace ns --partition p", "", func(o *RunOptions) {
			o.Consul = ConsulFlags{ServerName: "sn", Datacenter: "dc2", Namespace: "ns", Partition: "p"}
		}},
	} {
		t.Run(test.env+" run "+test.line, func(t *testing.T) {
			if name, value, ok := strings.Cut(test.env, "="); ok {
				t.Setenv(name, value)
			}
			r := onlyone(t, append(append([]string{"run"}, strings.Fields(test.line)...), "--", "x")...)
			want := defaults
			if test.want != nil {
				test.want(&want)
			}
			if r.code != 0 || r.stdout != "" || r.stderr != "" {
				t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
			}
			if got := options(r.only(t)); !equal(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func equal(a, b RunOptions) bool {
	return fmt.Sprintf("%+v", options(a)) == fmt.Sprintf("%+v", options(b))
}

func TestExplainNeedsNoCommand(t *testing.T) {
	for _, line := range []string{"run --explain", "run --explain a", "run a --lease 30s --explain --", "run --explain -- x"} {
		r := onlyone(t, strings.Fields(line)...)
		if o := r.only(t); r.code != 0 || !o.Explain {
			t.Errorf("%s: exit %d, %q", line, r.code, r.stderr)
		}
	}
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		line string
		code int
		want string // in place of time: T
	}{
		{"the command's code", &exitError{code: 3}, "", 3, ""},
		{"with a hint", &exitError{code: exitUnavailable, what: errors.New("cannot reach Consul: refused"), hint: "is it running?"}, "", 69, "onlyone: a: cannot reach Consul: refused; is it running?\n"},
		{"of another kind", errors.New("cannot fork"), "", 70, "onlyone: a: cannot fork\n"},
		{"with -q", errors.New("cannot fork"), "-q", 70, "onlyone: a: cannot fork\n"},
		{"mild", &exitError{code: 75, what: errors.New("held by web-2"), mild: true}, "", 75, "onlyone: a: held by web-2\n"},
		{"mild with -q", &exitError{code: 75, what: errors.New("held by web-2"), mild: true}, "-q", 75, ""},
		{"mild, and wanted", &exitError{code: 0, what: errors.New("held by web-2"), mild: true}, "", 0, ""},
		{"mild, wanted, -v", &exitError{code: 0, what: errors.New("held by web-2"), mild: true}, "-v", 0, "onlyone: a: held by web-2\n"},
		{"of two lines", errors.New("first\nsecond\x1b[2J"), "", 70, `onlyone: a: first\nsecond\x1b[2J` + "\n"},
		{"as JSON", &exitError{code: 69, what: errors.New("no Consul"), hint: "start it"}, "--log-format json", 69,
			`{"level":"error","name":"a","exit":69,"hint":"start it","time":"T","message":"no Consul"}` + "\n"},
		{"with --json", &exitError{code: 69, what: errors.New("no Consul")}, "--json", 69,
			`{"level":"error","name":"a","exit":69,"time":"T","message":"no Consul"}` + "\n"},
		{"with --json, but human lines", &exitError{code: 69, what: errors.New("no Consul")}, "--json --log-format human", 69, "onlyone: a: no Consul\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := (&result{recorder: recorder{fail: test.err}}).main(append(append([]string{"run", "a"}, strings.Fields(test.line)...), "--", "x")...)
			got := regexp.MustCompile(`"time":"[^"]+"`).ReplaceAllString(r.stderr, `"time":"T"`)
			if r.code != test.code || got != test.want || r.stdout != "" {
				t.Errorf("exit %d, %q\nwant %d, %q", r.code, got, test.code, test.want)
			}
		})
	}
	t.Run("usage as JSON", func(t *testing.T) {
		r := onlyone(t, "run", "--log-format=json", "--bad")
		if r.code != 64 || !strings.Contains(r.stderr, `"message":"run: unknown flag --bad"`) || strings.Contains(r.stderr, `"name"`) {
			t.Errorf("exit %d, %q", r.code, r.stderr)
		}
	})
}

func TestHelp(t *testing.T) {
	for _, line := range []string{"--help", "-h", "help", "-h run", "--help run a -- x"} {
		if r := onlyone(t, strings.Fields(line)...); r.code != 0 || r.stdout != appHelp || r.stderr != "" || len(r.ran) > 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, r.code, r.stdout, r.stderr)
		}
	}
	help := onlyone(t, "run", "--help").stdout
	for _, line := range []string{"run -h", "help run", "run a --help", "run a -nh -- x", "run --help -- x"} {
		if r := onlyone(t, strings.Fields(line)...); r.code != 0 || r.stdout != help || r.stderr != "" || len(r.ran) > 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, r.code, r.stdout, r.stderr)
		}
	}
	if r := onlyone(t, "version", "--help"); r.code != 0 || !strings.Contains(r.stdout, "--json") {
		t.Errorf("version --help: exit %d, %q", r.code, r.stdout)
	}

	// Examples come first, and all fits 80 columns and a screen.
	fits := func(name, text, example string, lines int) {
		for line := range strings.Lines(text) {
			if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		if n := strings.Count(text, "\n"); n > lines {
			t.Errorf("%s has %d lines, want at most %d", name, n, lines)
		}
		if at := strings.Index(text, "\n  "+example); at < 0 || strings.Count(text[:at], "\n") > 2 {
			t.Errorf("%s doesn't lead with examples", name)
		}
	}
	fits("onlyone --help", appHelp, "onlyone run ", 40)
	fits("onlyone run --help-all", onlyone(t, "run", "--help-all").stdout, "onlyone run ", 100)
	in := &invocation{app: New("", nil)}
	for _, c := range in.build().Commands {
		if c.Hidden {
			continue
		}
		r := onlyone(t, "help", c.Name)
		if r.code != 0 || r.stderr != "" || r.stdout != onlyone(t, c.Name, "--help").stdout {
			t.Errorf("help %s: exit %d, %q", c.Name, r.code, r.stderr)
		}
		example := "onlyone " + c.Name
		if c.Name == "verify" || c.Name == "fence" {
			example = "onlyone run " // inside of which they are
		}
		if c.Name == "release" {
			example = "ExecStopPost="
		}
		if c.Name == "completion" {
			example = "source <(onlyone completion"
		}
		fits("onlyone help "+c.Name, r.stdout, example, 48)
		if strings.Contains(r.stdout, "\n\n\n") {
			t.Errorf("help %s has two blank lines", c.Name)
		}
	}
	onlyone(t, "systemd", "billing").refused(t, "try: onlyone systemd billing -- CMD")
	onlyone(t, "systemd", "--", "sh", "-c", "x").refused(t, "try: onlyone systemd my-job -- sh ...")
	onlyone(t, "help", "staus").refused(t, "did you mean: onlyone status?")
	onlyone(t, "pauze", "x").refused(t, "did you mean: onlyone pause?")
	onlyone(t, "step-down", "--reson", "x", "y").refused(t, "did you mean --reason?")
	for _, f := range in.build().Command("run").Flags {
		for _, name := range f.Names() {
			if !strings.Contains(help, dashed(name)) {
				t.Errorf("the help has no %s", dashed(name))
			}
		}
	}
	if strings.Contains(help, "stale") || !strings.Contains(help, "CONSUL_") || !strings.Contains(help, "ONLYONE_") {
		t.Errorf("the help speaks of stale reads, or not of the variables")
	}
}

// TestVariables: every setting of ours has a variable, and none of Consul's has one of ours. What
// is set for "run" doesn't change what another command does.
func TestVariables(t *testing.T) {
	in := &invocation{app: New("", nil)}
	for _, f := range in.build().Command("run").Flags {
		name := f.Names()[0]
		variable := "ONLYONE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		t.Setenv(variable, "1") // fits every kind of value
		again := (&invocation{app: New("", nil)}).build().Command("run").Flags
		i := slices.IndexFunc(again, func(f cli.Flag) bool { return f.Names()[0] == name })
		has := slices.Contains(again[i].(cli.DocGenerationFlag).GetEnvVars(), variable)
		if consul := f.(cli.CategorizableFlag).GetCategory() == forConsul; has == (consul || name == "explain" || name == "help-all") {
			t.Errorf("--%s: has %s: %v", name, variable, has)
		}
		for command, shared := range map[string][]string{"step-down": {"timeout", "json", "prefix"}, "ls": {"timeout", "json", "prefix"}, "status": {"timeout", "json", "prefix"}, "unlock": {"timeout", "json", "prefix"}} {
			for _, f := range in.build().Command(command).Flags {
				if f.Names()[0] == name && !slices.Contains(shared, name) && slices.Contains(f.(cli.DocGenerationFlag).GetEnvVars(), variable) {
					t.Errorf("%s --%s has the %s of run", command, name, variable)
				}
			}
		}
	}
}

// TestCopiesOfAnOuterRun: the command of a copy finds ONLYONE_COPIES in its environment; a run
// of another lock in it has no copies by that.
func TestCopiesOfAnOuterRun(t *testing.T) {
	t.Setenv("ONLYONE_COPIES", "3")
	if got := onlyone(t, "run", "a", "--", "x").only(t).Copies; got != 3 {
		t.Errorf("%d copies by the variable, want 3", got)
	}
	t.Setenv("ONLYONE_COPY", "0")
	if got := onlyone(t, "run", "a", "--", "x").only(t).Copies; got != 0 {
		t.Errorf("%d copies in a copy of another lock, want none", got)
	}
	if got := onlyone(t, "run", "--copies", "2", "a", "--", "x").only(t).Copies; got != 2 {
		t.Errorf("%d copies, want 2", got)
	}
}

func TestVersion(t *testing.T) {
	r := onlyone(t, "version", "--json")
	if !regexp.MustCompile(`^\{"version":"1\.2\.3","os":"\w+","arch":"\w+","go":"go[^"]+"\}\n$`).MatchString(r.stdout) {
		t.Errorf("%q", r.stdout)
	}
}

func TestNoArguments(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := New("", nil).Main(context.Background(), nil, &stdout, &stderr); code != exitUsage {
		t.Errorf("exit %d with no argv[0]", code)
	}
}
