package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestLevels: how much is said depends on where stderr goes and on -q and -v.
func TestLevels(t *testing.T) {
	for _, test := range []struct {
		place     string
		quiet     bool
		verbosity int
		want      zerolog.Level
	}{
		{"cron", false, 0, zerolog.WarnLevel},
		{"cron", true, 0, zerolog.ErrorLevel},
		{"cron", false, 1, zerolog.InfoLevel},
		{"cron", false, 2, zerolog.DebugLevel},
		{"terminal", false, 0, zerolog.InfoLevel},
		{"terminal", true, 0, zerolog.ErrorLevel},
		{"terminal", false, 1, zerolog.DebugLevel},
		{"systemd", false, 0, zerolog.InfoLevel},
		{"systemd", true, 0, zerolog.ErrorLevel},
		{"systemd", false, 1, zerolog.InfoLevel},
		{"systemd", false, 2, zerolog.DebugLevel},
		{"debug", false, 0, zerolog.DebugLevel},
		{"debug", true, 0, zerolog.DebugLevel},
	} {
		p := place{terminal: test.place == "terminal", systemd: test.place == "systemd", debug: test.place == "debug"}
		if got := p.level(test.quiet, test.verbosity); got != test.want {
			t.Errorf("%s, quiet %v, %d -v: %v, want %v", test.place, test.quiet, test.verbosity, got, test.want)
		}
	}
}

func TestSurroundings(t *testing.T) {
	for _, test := range []struct {
		env     []string
		systemd bool
		debug   bool
	}{
		{nil, false, false},
		{[]string{"INVOCATION_ID=x"}, false, false},
		{[]string{"JOURNAL_STREAM=1:2"}, false, false},
		{[]string{"INVOCATION_ID=x", "JOURNAL_STREAM=1:2"}, true, false},
		{[]string{"NOTIFY_SOCKET=/run/x"}, true, false},
		{[]string{"ONLYONE_DEBUG=1"}, false, true},
		{[]string{"ONLYONE_DEBUG=0"}, false, false},
	} {
		t.Run(fmt.Sprint(test.env), func(t *testing.T) {
			for _, kv := range test.env {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			p := surroundings(&bytes.Buffer{})
			if p.systemd != test.systemd || p.debug != test.debug || p.terminal || p.journal {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestJournal: a line gets its priority only if this stderr is the one that systemd
// connected, not if JOURNAL_STREAM was inherited by something with another stderr.
func TestJournal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fi, err := w.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	t.Setenv("INVOCATION_ID", "0123")

	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	log, status := newOutput(outputConfig{stderr: w, verbosity: 2}, "a")
	log.Debug().Msg("debug")
	log.Info().Msg("info")
	log.Warn().Msg("warn")
	log.Error().Msg("error")
	jsonLog, _ := newOutput(outputConfig{stderr: w, json: true}, "")
	jsonLog.Error().Msg("json")
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino+1))
	log, _ = newOutput(outputConfig{stderr: w}, "a")
	log.Info().Msg("elsewhere")
	w.Close()
	var got bytes.Buffer
	got.ReadFrom(r)
	lines := strings.Split(got.String(), "\n")
	for i, want := range []string{"<7>onlyone: a: debug", "<6>onlyone: a: info", "<4>onlyone: a: warn", "<3>onlyone: a: error", `<3>{"level":"error",`, "onlyone: a: elsewhere", ""} {
		if !strings.HasPrefix(lines[i], want) || want == "" && lines[i] != "" {
			t.Errorf("line %d: %q, want %q", i, lines[i], want)
		}
	}
	if status.Active() {
		t.Error("a pipe has a status line")
	}
	for _, nonsense := range []string{"", ":", "1", "x:y", "1:2:3"} {
		if isJournal(r, nonsense) {
			t.Errorf("%q is the journal", nonsense)
		}
	}
}

func TestHumanLines(t *testing.T) {
	for _, test := range []struct {
		name string
		log  func(zerolog.Logger)
		want string
	}{
		{"message", func(l zerolog.Logger) { l.Warn().Msg("the lock is taken") }, "onlyone: a: the lock is taken\n"},
		{"fields in order", func(l zerolog.Logger) {
			l.Warn().Str("session", "28b4").Int("token", 7).Bool("z", true).Float64("s", 1.5).Msg("acquired")
		},
			"onlyone: a: acquired (session=28b4 token=7 z=true s=1.5)\n"},
		{"fields to quote", func(l zerolog.Logger) { l.Warn().Str("by", "a b").Str("none", "").Str("q", `"`).Msg("m") }, `onlyone: a: m (by="a b" none="" q="\"")` + "\n"},
		{"a list", func(l zerolog.Logger) { l.Warn().Strs("checks", []string{"a", "b"}).Msg("m") }, `onlyone: a: m (checks="[\"a\",\"b\"]")` + "\n"},
		{"an error", func(l zerolog.Logger) { l.Warn().Err(errors.New("refused")).Int("n", 1).Msg("cannot renew") }, "onlyone: a: cannot renew: refused (n=1)\n"},
		{"only an error", func(l zerolog.Logger) { l.Warn().Err(errors.New("refused")).Send() }, "onlyone: a: refused\n"},
		{"what others wrote", func(l zerolog.Logger) { l.Warn().Str("host", "\x1b[31mweb\n").Msg("held by \x1b[2J\nweb-2 \"x\"") },
			`onlyone: a: held by \x1b[2J\nweb-2 "x" (host="\x1b[31mweb\n")` + "\n"},
		{"not UTF-8", func(l zerolog.Logger) { l.Warn().Msg("x\xffy") }, "onlyone: a: x�y\n"},
		{"below the level", func(l zerolog.Logger) { l.Info().Msg("m") }, ""},
		{"umlauts", func(l zerolog.Logger) { l.Warn().Msg("Zürich … ok") }, "onlyone: a: Zürich … ok\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			log, _ := newOutput(outputConfig{stderr: &b}, "a")
			test.log(log)
			if b.String() != test.want {
				t.Errorf("got  %q\nwant %q", b.String(), test.want)
			}
		})
	}
}

func TestJSONLines(t *testing.T) {
	var b bytes.Buffer
	log, status := newOutput(outputConfig{stderr: &b, json: true}, "team/a")
	before := time.Now()
	log.Warn().Err(errors.New("refused\n")).Int("attempt", 2).Msg("cannot renew")
	log.Error().Msg("gone")
	status.Set("waiting")
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%q", b.String())
	}
	var got struct {
		Level, Name, Message, Error string
		Time                        time.Time
		Attempt                     int
	}
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
		t.Fatal(err)
	}
	if got.Time.Before(before) || time.Since(got.Time) < 0 {
		t.Errorf("time %v", got.Time)
	}
	if got.Level != "warn" || got.Name != "team/a" || got.Message != "cannot renew" || got.Error != "refused\n" || got.Attempt != 2 {
		t.Errorf("%+v", got)
	}
}

func TestColours(t *testing.T) {
	for level, want := range map[zerolog.Level]string{
		zerolog.InfoLevel: "onlyone: a: m\n", zerolog.WarnLevel: "\x1b[33monlyone: a:\x1b[0m m\n", zerolog.ErrorLevel: "\x1b[31monlyone: a:\x1b[0m m\n",
	} {
		var b bytes.Buffer
		w := &lineWriter{status: &StatusLine{out: &b}, human: true, colour: true}
		log := zerolog.New(w).With().Str("name", "a").Logger()
		log.WithLevel(level).Msg("m")
		if b.String() != want {
			t.Errorf("%v: %q, want %q", level, b.String(), want)
		}
	}
}

// screen is what a terminal shows of b: \r goes to the start of the line, ESC [ K clears to
// its end.
func screen(b string) []string {
	lines, column := []string{""}, 0
	for b != "" {
		last := []rune(lines[len(lines)-1])
		switch {
		case strings.HasPrefix(b, clearToEnd):
			lines[len(lines)-1] = string(last[:min(column, len(last))])
			b = b[len(clearToEnd):]
			continue
		case b[0] == '\r':
			column = 0
		case b[0] == '\n':
			lines, column = append(lines, ""), 0
		default:
			r := []rune(b)[0]
			if column < len(last) {
				last[column] = r
			} else {
				last = append(last, r)
			}
			lines[len(lines)-1] = string(last)
			column++
			b = b[len(string(r)):]
			continue
		}
		b = b[1:]
	}
	return lines
}

func TestStatusLine(t *testing.T) {
	var b bytes.Buffer
	s := &StatusLine{out: &b, width: func() int { return 40 }}
	log := zerolog.New(&lineWriter{status: s, human: true}).With().Str("name", "a").Logger()
	see := func(want ...string) {
		t.Helper()
		if got := screen(b.String()); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("screen %q, want %q", got, want)
		}
	}
	s.Clear() // nothing to take away
	see("")
	s.Set("a: waiting 9s, held by web-2")
	see("onlyone: a: waiting 9s, held by web-2")
	s.Set("a: waiting")
	see("onlyone: a: waiting")
	log.Info().Msg("first")
	see("onlyone: a: first", "onlyone: a: waiting")
	s.Set(strings.Repeat("ü", 100))
	see("onlyone: a: first", "onlyone: "+strings.Repeat("ü", 29)+"…") // 39 of 40: the last column would wrap
	s.Set("two\nlines\x1b[2J")
	see("onlyone: a: first", `onlyone: two\nlines\x1b[2J`)
	s.Clear()
	see("onlyone: a: first", "")
	log.Info().Msg("second")
	see("onlyone: a: first", "onlyone: a: second", "")
	s.Set("x")
	s.Set("")
	see("onlyone: a: first", "onlyone: a: second", "")
	if n := strings.Count(b.String(), "\n"); n != 2 {
		t.Errorf("%d lines", n)
	}

	for _, width := range []int{0, 1, 2} {
		s := &StatusLine{out: &b, width: func() int { return width }}
		s.Set("narrow")
	}
	var none *StatusLine
	none.Set("x")
	none.Clear()
	b.Reset()
	off := &StatusLine{out: &b}
	off.Set("x")
	off.Clear()
	if b.Len() > 0 || off.Active() || none.Active() {
		t.Errorf("a status line without a terminal writes %q", b.String())
	}
}

// In the background the last line is the shell's, with what is being typed there.
func TestStatusLineInTheBackground(t *testing.T) {
	var b bytes.Buffer
	background := false
	s := &StatusLine{out: &b, width: func() int { return 40 }, background: func() bool { return background }}
	log := zerolog.New(&lineWriter{status: s, human: true}).With().Str("name", "a").Logger()
	s.Set("a: waiting 1s") // and then ^Z, bg
	background = true
	b.Reset()
	s.Set("a: waiting 2s")
	s.Clear()
	if b.Len() > 0 {
		t.Errorf("it writes %q", b.String())
	}
	log.Info().Msg("running")
	if got, want := b.String(), "onlyone: a: running\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	background = false // fg
	b.Reset()
	s.Set("a: waiting 3s")
	if got := screen(b.String()); got[0] != "onlyone: a: waiting 3s" {
		t.Errorf("screen %q", got)
	}
	background = true
	b.Reset()
	log.Info().Msg("running")
	if got, want := b.String(), "onlyone: a: running\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStatusLineConcurrent: no line is torn, whoever writes.
func TestStatusLineConcurrent(t *testing.T) {
	var b bytes.Buffer
	s := &StatusLine{out: &b, width: func() int { return 80 }}
	log := zerolog.New(&lineWriter{status: s, human: true}).With().Str("name", "a").Logger()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				s.Set(fmt.Sprintf("waiting %d", i))
				log.Info().Int("writer", i).Msg("line")
				if i == 0 {
					s.Clear()
				}
			}
		})
	}
	wg.Wait()
	s.Clear()
	lines := screen(b.String())
	if len(lines) != 81 {
		t.Fatalf("%d lines, want 80 and an empty one", len(lines))
	}
	for _, line := range lines[:80] {
		if !strings.HasPrefix(line, "onlyone: a: line (writer=") || len(line) != len("onlyone: a: line (writer=0)") {
			t.Fatalf("torn: %q", line)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, test := range []struct {
		in    string
		width int
		want  string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöü", 2, "ä…"}, {"abc", 1, "…"}, {"abc", 0, ""}, {"abc", -5, ""}, {"", 0, ""}} {
		if got := truncate(test.in, test.width); got != test.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", test.in, test.width, got, test.want)
		}
	}
}

// TestLineThatIsNoJSON: what zerolog never writes is passed on rather than lost.
func TestLineThatIsNoJSON(t *testing.T) {
	for _, line := range []string{"plain\n", "[1]\n", `{"a":` + "\n", ""} {
		var b bytes.Buffer
		w := &lineWriter{status: &StatusLine{out: &b}, human: true}
		if n, err := w.Write([]byte(line)); err != nil || n != len(line) || b.String() != line {
			t.Errorf("%q: %d, %v, %q", line, n, err, b.String())
		}
	}
}
