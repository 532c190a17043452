package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestCut(t *testing.T) {
	for _, test := range []struct {
		line, ours, command string
		found               bool
	}{
		{"", "", "", false},
		{"a b", "a b", "", false},
		{"a -- b", "a", "b", true},
		{"-- b -- c --", "", "b -- c --", true},
		{"a --", "a", "", true},
		{"a --- b", "a --- b", "", false},
	} {
		ours, command, found := cut(strings.Fields(test.line))
		if strings.Join(ours, " ") != test.ours || strings.Join(command, " ") != test.command || found != test.found {
			t.Errorf("cut(%q) = %q, %q, %v", test.line, ours, command, found)
		}
	}
}

// runFlags are fresh flags of run: a flag keeps its value.
func runFlags() flagSet {
	in := &invocation{app: New("", nil)}
	return newFlagSet(in.build().Command("run").Flags)
}

func TestOrder(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"", "|"},
		{"NAME", "|NAME"},
		{"NAME -n", "--no-wait|NAME"},
		{"-w 5s NAME", "--wait=5s|NAME"},
		{"a --wait 5s b -E=3 c", "--wait=5s --conflict-exit-code=3|a b c"},
		{"-nqvw 5s a", "--no-wait --quiet --verbose --wait=5s|a"},
		{"-nw5s a", "--no-wait --wait=5s|a"},
		{"-nw=5s a", "--no-wait --wait=5s|a"},
		{"-sTERM a", "--signal=TERM|a"},
		{"-vv a", "--verbose --verbose|a"},
		{"-http-addr=h:1 a", "--http-addr=h:1|a"},
		{"-token-file f a", "--token-file=f|a"},
		{"--token --token-file a", "--token=--token-file|a"}, // a value may look like anything
		{"--token= a", "--token=|a"},
		{"--token a=b c", "--token=a=b|c"},
		{"--quiet=false a", "--quiet=false|a"},
		{"-h", "--help|"},
	} {
		o, err := runFlags().order(strings.Fields(test.line), false)
		if got := strings.Join(o.flags, " ") + "|" + strings.Join(o.positionals, " "); err != nil || got != test.want {
			t.Errorf("%q: %q (%v), want %q", test.line, got, err, test.want)
		}
	}
}

func TestOrderStopsAtPositional(t *testing.T) {
	set := newFlagSet([]cli.Flag{&cli.BoolFlag{Name: "version", Aliases: []string{"V"}}})
	o, err := set.order([]string{"-V", "run", "-V", "--whatever"}, true)
	if err != nil || !slices.Equal(o.flags, []string{"--version"}) || !slices.Equal(o.positionals, []string{"run", "-V", "--whatever"}) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestClosest(t *testing.T) {
	words := []string{"run", "version", "wait", "no-wait", "kill-after", "log-format", "n", "w"}
	for s, want := range map[string]string{
		"rnu": "run", "ru": "run", "r": "", "rum": "run", "runn": "run", "vresion": "version", "wiat": "wait", "nowait": "no-wait",
		"kill": "kill-after", "format": "log-format", "x": "", "": "", "frobnicate": "", "backup": "",
	} {
		if got := closest(s, words); got != want {
			t.Errorf("closest(%q) = %q, want %q", s, got, want)
		}
	}
}

// FuzzCommandLine: whatever is typed, the command that runs is exactly what follows the
// first "--", and what is refused is refused with 64, in one line, with nothing on stdout.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{
		"run NAME -- sh -c x", "run -nw 5s NAME -- x -- y", "run NAME --timeout 5s -- sh", "run help -- x", "run --bad", "rnu", "-v", "--version",
		"run -E 300 a -- x", "run -sRTMIN+3 -E7 -w5m a -- x", "run a --check=a,b --http-addr h:1,h:2 -- x", "run -- sh", "run -- report", "help run",
		"run --lease= a -- x", "run - -- x", "run -nh -- x", "run a -w", "version --json", "run --log-format json --bad", "run a -qvvqv -- x", "run -= a -- x", "run --=x a -- x",
	} {
		f.Add(strings.ReplaceAll(line, " ", "\x00"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		_, command, dashes := cut(args)
		r := onlyone(t, args...)
		switch {
		case len(r.ran) > 1:
			t.Fatalf("%q: ran %d times", args, len(r.ran))
		case len(r.ran) == 1:
			o := r.ran[0]
			if r.code != 0 || r.stdout != "" || r.stderr != "" || !slices.Equal(o.Command, command) || !o.Explain && !dashes {
				t.Fatalf("%q: exit %d, ran %q, stdout %q, stderr %q", args, r.code, o.Command, r.stdout, r.stderr)
			}
			if !o.Explain && checkName(o.Name) != nil || checkPath(o.Prefix) != nil || o.Wait < 0 || o.ConflictExit < 0 || o.ConflictExit > 255 {
				t.Fatalf("%q: %+v", args, o)
			}
		case r.code == 0: // help or version
			if r.stdout == "" || r.stderr != "" {
				t.Fatalf("%q: stdout %q, stderr %q", args, r.stdout, r.stderr)
			}
		case r.code != exitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1:
			t.Fatalf("%q: exit %d, stdout %q, stderr %q", args, r.code, r.stdout, r.stderr)
		}
	})
}

// FuzzOrder: flags by their long names and what is left are ordered as they are.
func FuzzOrder(f *testing.F) {
	for _, line := range []string{"a -nw 5s b", "-w5s", "-http-addr=h --token t x", "--token -n -n a", "-qvqv a", "-E=1 -s15 b c"} {
		f.Add(strings.ReplaceAll(line, " ", "\x00"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		first, err := runFlags().order(args, false)
		if err != nil {
			return
		}
		again, err := runFlags().order(append(slices.Clone(first.flags), first.positionals...), false)
		if err != nil || !slices.Equal(first.flags, again.flags) || !slices.Equal(first.positionals, again.positionals) {
			t.Fatalf("%q: %+v, then %+v (%v)", args, first, again, err)
		}
	})
}

func BenchmarkMain(b *testing.B) {
	app := New("", func(context.Context, RunOptions) error { return nil })
	for b.Loop() {
		app.Main(context.Background(), []string{"onlyone", "run", "-w", "5s", "a", "--", "x"}, io.Discard, io.Discard)
	}
}
