package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// outputConfig says how much is said on stderr, and how.
type outputConfig struct {
	quiet     bool // errors only
	verbosity int  // how many -v
	json      bool
	stderr    io.Writer
}

// newOutput makes the logger for one lock and the status line that goes with it.
//
// Human lines read "onlyone: NAME: message: error (key=value ...)". JSON lines have level,
// time (RFC 3339 with nanoseconds), name and message, an error's text as error, and the
// fields of the event.
func newOutput(c outputConfig, name string) (zerolog.Logger, *StatusLine) {
	on := surroundings(c.stderr)
	level := on.level(c.quiet, c.verbosity)
	out := c.stderr
	if f, ok := out.(*os.File); ok {
		out = &patient{file: f, fd: int32(f.Fd())}
	}
	status := &StatusLine{out: out}
	if on.terminal && !on.dumb && !c.json && level <= zerolog.InfoLevel {
		status.width, status.background = on.width, on.background
	}
	w := &lineWriter{status: status, human: !c.json, priorities: on.journal, colour: on.colour}
	log := zerolog.New(w).Level(level).Hook(timestamp{})
	if name != "" {
		log = log.With().Str("name", name).Logger()
	}
	return log, status
}

// timestamp writes the time without zerolog's global settings, which are whole seconds.
type timestamp struct{}

func (timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().Format(time.RFC3339Nano))
}

// A place is where onlyone was started, as far as its messages depend on it.
type place struct {
	terminal bool
	dumb     bool // a terminal that can't redraw a line
	colour   bool
	systemd  bool
	journal  bool // stderr goes to the journal, which takes priorities
	debug    bool
	width    func() int

	background func() bool // of the terminal
}

func surroundings(stderr io.Writer) place {
	p := place{
		debug: os.Getenv("ONLYONE_DEBUG") != "" && os.Getenv("ONLYONE_DEBUG") != "0",
		systemd: os.Getenv("NOTIFY_SOCKET") != "" ||
			os.Getenv("INVOCATION_ID") != "" && os.Getenv("JOURNAL_STREAM") != "",
	}
	f, ok := stderr.(*os.File)
	if !ok {
		return p
	}
	p.journal = isJournal(f, os.Getenv("JOURNAL_STREAM"))
	if p.terminal = isatty.IsTerminal(f.Fd()); p.terminal {
		p.dumb = os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == ""
		p.colour = !p.dumb && os.Getenv("NO_COLOR") == ""
		p.width = func() int { return terminalWidth(f) }
		p.background = func() bool { return inBackground(f) }
	}
	return p
}

// level: a terminal and systemd are told of each change; cron and scripts, which mail or
// print what they are told, only of what went wrong.
func (p place) level(quiet bool, verbosity int) zerolog.Level {
	switch {
	case p.debug || verbosity > 1:
		return zerolog.DebugLevel
	case quiet:
		return zerolog.ErrorLevel
	case verbosity == 1 && p.terminal:
		return zerolog.DebugLevel // info is what it has anyway
	case verbosity == 1 || p.terminal || p.systemd:
		return zerolog.InfoLevel
	}
	return zerolog.WarnLevel
}

// isJournal reports whether f is the stream that systemd connected to its journal:
// JOURNAL_STREAM is DEVICE:INODE, and is inherited by those whose stderr is another one.
func isJournal(f *os.File, stream string) bool {
	device, inode, ok := strings.Cut(stream, ":")
	if !ok {
		return false
	}
	fi, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && device == fmt.Sprint(st.Dev) && inode == fmt.Sprint(st.Ino)
}

// inBackground reports whether f is our terminal and another group is in its foreground: then the
// line where the cursor stands is that one's. In a PID namespace neither may have a number.
func inBackground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group != 0 && group != unix.Getpgrp()
}

// terminalWidth is the number of columns, 80 if the terminal doesn't know.
func terminalWidth(f *os.File) int {
	width, _ := terminalSize(f)
	return width
}

// terminalSize is the number of columns and rows, 80 and 24 if the terminal doesn't know.
func terminalSize(f *os.File) (width, height int) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return 80, 24
	}
	return int(ws.Col), int(ws.Row)
}

// A StatusLine is the one line that a terminal shows while nothing else happens. It is
// redrawn in place, taken away before any other line is written, and put back after it.
// Where stderr isn't a terminal (and with -q or JSON), and in its background, its methods do
// nothing. Its methods may be called concurrently.
type StatusLine struct {
	width      func() int  // nil: there is no line
	background func() bool // nil: it never is

	mu   sync.Mutex
	out  io.Writer
	text string // what is shown now; empty: nothing
}

// Active reports whether there is a line to set at all.
func (s *StatusLine) Active() bool { return s != nil && s.width != nil }

// Set shows text; it replaces what was shown.
func (s *StatusLine) Set(text string) {
	if !s.Active() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text = printable(text); !s.elsewhere() {
		s.draw()
	}
}

// Clear takes the line away.
func (s *StatusLine) Clear() {
	if !s.Active() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.elsewhere() {
		s.erase()
	}
	s.text = ""
}

// elsewhere forgets the line of a terminal that has another one in its foreground now.
func (s *StatusLine) elsewhere() bool {
	if s.background == nil || !s.background() {
		return false
	}
	s.text = ""
	return true
}

const clearToEnd = "\x1b[K"

func (s *StatusLine) draw() {
	if s.text == "" {
		s.erase()
		return
	}
	io.WriteString(s.out, "\r"+truncate("onlyone: "+s.text, s.width()-1)+clearToEnd)
}

func (s *StatusLine) erase() {
	io.WriteString(s.out, "\r"+clearToEnd)
}

// write puts a finished line out, with the status line out of its way.
func (s *StatusLine) write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.width == nil || s.text == "" || s.elsewhere() {
		return s.out.Write(line)
	}
	s.erase()
	n, err := s.out.Write(line)
	s.draw()
	return n, err
}

// truncate shortens s to width columns, of one rune each.
func truncate(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + "…"
}

// A lineWriter takes zerolog's JSON lines and writes what a human, a program or the
// journal reads, each line with one write.
type lineWriter struct {
	status     *StatusLine
	human      bool
	priorities bool
	colour     bool
}

var _ zerolog.LevelWriter = (*lineWriter)(nil)

func (w *lineWriter) Write(p []byte) (int, error) { return w.WriteLevel(zerolog.NoLevel, p) }

func (w *lineWriter) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	var line bytes.Buffer
	if w.priorities {
		line.WriteString(priority(level))
	}
	if !w.human {
		line.Write(p)
	} else if err := w.render(&line, level, p); err != nil {
		line.Write(p) // better as it is than not at all
	}
	if _, err := w.status.write(line.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// priority is how sd-daemon(3) marks a line's level.
func priority(level zerolog.Level) string {
	switch level {
	case zerolog.TraceLevel, zerolog.DebugLevel:
		return "<7>"
	case zerolog.WarnLevel:
		return "<4>"
	case zerolog.ErrorLevel:
		return "<3>"
	case zerolog.FatalLevel, zerolog.PanicLevel:
		return "<2>"
	}
	return "<6>"
}

// render turns one JSON object into "onlyone: NAME: message: error (key=value ...)".
func (w *lineWriter) render(line *bytes.Buffer, level zerolog.Level, p []byte) error {
	var name, message, cause, hint string
	var fields []string
	err := eachField(p, func(key, value string) {
		switch key {
		case zerolog.LevelFieldName, zerolog.TimestampFieldName, exitField:
		case "name":
			name = value
		case zerolog.MessageFieldName:
			message = value
		case zerolog.ErrorFieldName:
			cause = value
		case hintField:
			hint = value
		default:
			fields = append(fields, key+"="+quoted(value))
		}
	})
	if err != nil {
		return err
	}
	start := "onlyone: "
	if name != "" {
		start += printable(name) + ": "
	}
	if colour := map[zerolog.Level]string{zerolog.WarnLevel: "\x1b[33m", zerolog.ErrorLevel: "\x1b[31m"}[level]; w.colour && colour != "" {
		start = colour + strings.TrimSuffix(start, " ") + "\x1b[0m "
	}
	line.WriteString(start)
	line.WriteString(printable(message))
	if cause != "" {
		if message != "" {
			line.WriteString(": ")
		}
		line.WriteString(printable(cause))
	}
	if len(fields) > 0 {
		line.WriteString(" (" + strings.Join(fields, " ") + ")")
	}
	if hint != "" {
		line.WriteString("; " + printable(hint))
	}
	line.WriteByte('\n')
	return nil
}

// eachField calls f for each field of a JSON object, in order. A string's value comes
// without its quotes, everything else as JSON.
func eachField(p []byte, f func(key, value string)) error {
	d := json.NewDecoder(bytes.NewReader(p))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		value := string(raw)
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &value); err != nil {
				return err
			}
		}
		f(key.(string), value)
	}
	return nil
}

// quoted quotes a value that would be hard to tell from what is around it.
func quoted(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || r == '"' || r == '(' || r == ')' || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// printable keeps one line one line, and what others wrote into Consul (a host's name, a
// command) from doing things to a terminal.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

const (
	hintField = "hint"
	exitField = "exit"
)

// report writes an error that ends the program.
func report(log zerolog.Logger, err error) {
	if e, ok := errors.AsType[*exitError](err); ok {
		if e.what == nil {
			return
		}
		level := zerolog.ErrorLevel
		if e.mild && e.code == exitOK {
			level = zerolog.InfoLevel // with -E 0 it isn't even worth a mail of cron
		} else if e.mild {
			level = zerolog.WarnLevel
		}
		event := log.WithLevel(level).Int(exitField, e.code)
		if e.hint != "" {
			event = event.Str(hintField, e.hint)
		}
		event.Msg(e.what.Error())
		return
	}
	log.Error().Int(exitField, exitInternal).Msg(err.Error())
}

// patient drops what stderr doesn't take: a full pipe or a terminal stopped by ^S must not
// keep the keeper from renewing or from seeing a signal. A line up to PIPE_BUF fits
// whole where poll says that there is room.
type patient struct {
	file *os.File
	fd   int32
	full bool // the last line was dropped: don't wait for the next
}

func (p *patient) Write(b []byte) (int, error) {
	wait := 100 // ms
	if p.full {
		wait = 0
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: p.fd, Events: unix.POLLOUT}}, wait)
		if err == unix.EINTR {
			continue
		}
		if p.full = err == nil && n == 0; p.full {
			return len(b), nil
		}
		return p.file.Write(b)
	}
}
