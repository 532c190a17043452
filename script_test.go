//go:build linux

package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// TestScript runs the transcripts in testdata/script, each with a lock name of its own
// ($NAME) on the shared server. After each nothing may be left, see nothingLeft.
//
// Beside testscript's own commands:
//
//	exits CODE CMD ARG...   run CMD; it ends with CODE, or by a signal: exits TERM CMD
//	says WORD...            stderr is one line of ours that holds each WORD, stdout is empty
//	nothing                 neither stdout nor stderr has anything
//	untouched               there is no session and no key of $NAME
//	held, queued            wait until the lock of $NAME is held; until somebody waits for it
//	jsonlines FIELD...      stderr is JSON objects with level, time, name and message, one a
//	                        line; one of them has each FIELD, or FIELD=VALUE
//	aclserver               go on with a server of its own that denies by default
//	token VAR RULES         set VAR to a token with these ACL rules
//	tokenfromstderr VAR     set VAR to a token with the rules that stderr's message asks for
//
// and the condition [exists:PATH].
func TestScript(t *testing.T) {
	t.Parallel()
	shared := shared(t, consultest.Version())
	source, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			tb := env.T().(testing.TB)
			name := "script-" + strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
			tmp := tb.TempDir()
			vars := &scriptVars{tb: tb, server: shared, name: name}
			env.Values[scriptKey{}] = vars
			tb.Cleanup(func() {
				nothingLeft(tb, vars.server, name, tb.Name(), tmp, 5*time.Second)
				if vars.server != shared {
					vars.server.Close()
				}
			})
			env.Setenv("NAME", name)
			env.Setenv("TMPDIR", tmp)
			env.Setenv("CONSUL_HTTP_ADDR", shared.Addr)
			env.Setenv("PATH", filepath.Dir(onlyone)+":"+filepath.Dir(shared.Binary)+":"+os.Getenv("PATH"))
			env.Setenv("SOURCE", source)
			mark, value, _ := strings.Cut(consultest.Mark(tb.Name()), "=")
			env.Setenv(mark, value)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "says": says, "nothing": nothing, "untouched": untouched, "held": held, "queued": queued,
			"jsonlines": jsonlines, "aclserver": aclserver, "token": token, "tokenfromstderr": tokenFromStderr,
		},
		Condition: func(cond string) (bool, error) {
			path, ok := strings.CutPrefix(cond, "exists:")
			if !ok {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := os.Stat(path)
			return err == nil, nil
		},
		RequireUniqueNames: true,
	})
}

type scriptKey struct{}

type scriptVars struct {
	tb     testing.TB
	server *consultest.Server
	name   string
}

func varsOf(ts *testscript.TestScript) *scriptVars { return ts.Value(scriptKey{}).(*scriptVars) }

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE CMD ARG...")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("cannot run %s: %v", args[1], err)
		}
		got = strconv.Itoa(e.ExitCode())
		if s := e.Sys().(syscall.WaitStatus); s.Signaled() {
			got = strings.TrimPrefix(unix.SignalName(s.Signal()), "SIG")
		}
	}
	if got != args[0] {
		ts.Fatalf("it ended with %s, want %s", got, args[0])
	}
}

func says(ts *testscript.TestScript, neg bool, args []string) {
	stderr := ts.ReadFile("stderr")
	if neg || len(args) == 0 {
		ts.Fatalf("usage: says WORD...")
	}
	if stdout := ts.ReadFile("stdout"); stdout != "" {
		ts.Fatalf("stdout has %q, want nothing", stdout)
	}
	if strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") || !strings.HasPrefix(stderr, "onlyone: ") {
		ts.Fatalf("want one line of onlyone's on stderr, got %q", stderr)
	}
	for _, w := range args {
		if !strings.Contains(stderr, w) {
			ts.Fatalf("want %q in %q", w, stderr)
		}
	}
}

func nothing(ts *testscript.TestScript, neg bool, args []string) {
	for _, out := range []string{"stdout", "stderr"} {
		if s := ts.ReadFile(out); neg || s != "" {
			ts.Fatalf("%s has %q, want nothing", out, s)
		}
	}
}

func untouched(ts *testscript.TestScript, neg bool, args []string) {
	v := varsOf(ts)
	if s := v.server.Sessions(v.tb, "onlyone/"+v.name); neg || len(s) > 0 {
		ts.Fatalf("there are sessions: %q", s)
	}
	if k := v.server.Keys(v.tb, "onlyone/"+v.name); len(k) > 0 {
		ts.Fatalf("there are keys: %q", k)
	}
}

func held(ts *testscript.TestScript, neg bool, args []string) {
	v := varsOf(ts)
	if !soon(patience, func() bool {
		kv := v.server.Key(v.tb, "onlyone/"+v.name+"/.lock")
		return kv != nil && kv.Session != ""
	}) {
		ts.Fatalf("the lock isn't held after %s", patience)
	}
}

func queued(ts *testscript.TestScript, neg bool, args []string) {
	v := varsOf(ts)
	if !soon(patience, func() bool { return len(v.server.Keys(v.tb, "onlyone/"+v.name+"/~queue/")) > 0 }) {
		ts.Fatalf("nobody is in the queue after %s", patience)
	}
}

func jsonlines(ts *testscript.TestScript, neg bool, args []string) {
	found := map[string]bool{}
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			ts.Fatalf("not a JSON object: %q: %v", line, err)
		}
		for _, field := range []string{"level", "time", "name", "message"} {
			if s, ok := o[field].(string); !ok || s == "" {
				ts.Fatalf("no %q in %s", field, line)
			}
		}
		if _, err := time.Parse(time.RFC3339Nano, o["time"].(string)); err != nil {
			ts.Fatalf("%s: %v", line, err)
		}
		for _, want := range args {
			field, value, hasValue := strings.Cut(want, "=")
			got, ok := o[field]
			b, _ := json.Marshal(got)
			if ok && (!hasValue || got == value || string(b) == value) {
				found[want] = true
			}
		}
	}
	for _, want := range args {
		if !found[want] {
			ts.Fatalf("no line has %s:\n%s", want, ts.ReadFile("stderr"))
		}
	}
}

func aclserver(ts *testscript.TestScript, neg bool, args []string) {
	v := varsOf(ts)
	s, err := consultest.New(consultest.Options{ACL: true})
	ts.Check(err)
	v.server = s // closed in Setup's clean-up
	ts.Setenv("CONSUL_HTTP_ADDR", s.Addr)
}

func token(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: token VAR RULES")
	}
	secret, err := varsOf(ts).server.Token(args[1])
	ts.Check(err)
	ts.Setenv(args[0], secret)
}

func tokenFromStderr(ts *testscript.TestScript, neg bool, args []string) {
	_, rules, ok := strings.Cut(ts.ReadFile("stderr"), "the token's policy needs: ")
	if neg || len(args) != 1 || !ok {
		ts.Fatalf("usage: tokenfromstderr VAR, after a message that says what a token needs")
	}
	token(ts, false, slices.Concat(args, []string{strings.TrimSpace(rules)}))
}
