package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// locksJSON is what status and ls print with --json.
type locksJSON struct {
	Schema int                  `json:"schema"`
	Locks  []consulsession.Lock `json:"locks"`
}

func (in *invocation) statusCommand() *cli.Command {
	return in.operation(&cli.Command{
		Name:      "status",
		Usage:     "show who holds a lock and who waits for it",
		ArgsUsage: "[NAME...]",
		Description: `onlyone status [flags] [NAME...]

  onlyone status backup              who has it, since when, who waits
  onlyone status --quiet backup      only the host
  onlyone status --watch backup      again on each change

Without NAME: all locks. NAME/2 is copy 2 of a lock with copies.
Exit codes: 0 all that were named are held, 1 one isn't, 69 Consul isn't there,
77 not allowed.
`,
		Flags: []cli.Flag{
			boolFlag("", "watch", "", "go on, and print it again on each change"),
			boolFlag("", "quiet", "q", "print the holder's host only"),
		},
	}, func(op *operation) error {
		s := &status{op, op.c.Bool("quiet"), time.Now}
		if op.c.Bool("watch") {
			return s.watch()
		}
		locks, err := s.read()
		if err != nil {
			return err
		}
		if err := s.print(op.in.stdout, locks); err != nil {
			return err
		}
		for _, l := range locks {
			if len(op.names) > 0 && l.State != consulsession.Held {
				return &exitError{code: exitFree}
			}
		}
		return nil
	})
}

type status struct {
	*operation
	quiet bool
	now   func() time.Time
}

func (s *status) read() ([]consulsession.Lock, error) {
	if len(s.names) == 0 {
		locks, filtered, err := s.Locks(s.ctx(), "")
		s.warnFiltered(filtered)
		return locks, s.problem("", err)
	}
	var locks []consulsession.Lock
	for _, name := range s.names {
		l, t, err := s.Find(s.ctx(), name)
		if err != nil {
			return nil, s.problem(name, err)
		}
		if l.Copies > 0 && t.Copy >= l.Copies && l.At(t.Copy).State == consulsession.Free {
			s.warn("%s: there is no copy %d: they are 0 to %d", name, t.Copy, l.Copies-1)
		}
		locks = append(locks, onlyCopy(l, t))
	}
	return locks, nil
}

func (op *operation) warnFiltered(filtered bool) {
	if filtered {
		op.warn("the token may not read all keys below %s/: some locks may be missing", op.prefix.prefix)
	}
}

// onlyCopy is a lock with none but the copy that was asked for.
func onlyCopy(l consulsession.Lock, t consulsession.Target) consulsession.Lock {
	if t.Copy < 0 {
		return l
	}
	h := l.At(t.Copy)
	l.Each, l.State = []consulsession.Copy{{Copy: t.Copy, Hold: h}}, h.State
	return l
}

// print writes locks in the form that was asked for.
func (s *status) print(w io.Writer, locks []consulsession.Lock) error {
	var b bytes.Buffer
	switch {
	case s.json:
		if locks == nil {
			locks = []consulsession.Lock{}
		}
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(locksJSON{consulsession.Schema, locks}); err != nil {
			return err
		}
	case s.quiet:
		for _, l := range locks {
			for _, host := range hosts(l) {
				fmt.Fprintln(&b, printable(host))
			}
		}
	default:
		for _, l := range locks {
			for _, line := range describe(l, s.now()) {
				fmt.Fprintln(&b, printable(line))
			}
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// hosts are those of the holders: what isn't an onlyone has none that we know.
func hosts(l consulsession.Lock) (hosts []string) {
	add := func(h consulsession.Hold) {
		if h.Holder != nil && h.Holder.Host != "" {
			hosts = append(hosts, h.Holder.Host)
		} else if h.Holder != nil {
			hosts = append(hosts, "-")
		}
	}
	add(l.Hold)
	for _, c := range l.Each {
		add(c.Hold)
	}
	return hosts
}

// maxShown is how many of a queue, and how many free copies, are listed.
const maxShown = 10

// describe is a lock for people, a line each.
func describe(l consulsession.Lock, now time.Time) []string {
	var lines []string
	row := func(label, format string, a ...any) {
		lines = append(lines, fmt.Sprintf("  %-9s %s", label, fmt.Sprintf(format, a...)))
	}
	if l.Copies == 0 && len(l.Each) == 0 {
		lines = append(lines, l.Name+"   "+heldText(l.Hold, now))
		details(l.Hold, row, now)
	} else {
		of := "?" // .copies can't be read
		if l.Copies > 0 {
			of = strconv.Itoa(l.Copies)
		}
		lines = append(lines, fmt.Sprintf("%s   %d of %s copies held", l.Name, l.Held, of))
		for _, c := range l.Each {
			if c.State == consulsession.Free && c.Unclean == nil && len(l.Each) > 1 {
				continue
			}
			row(strconv.Itoa(c.Copy), "%s", heldText(c.Hold, now))
			details(c.Hold, row, now)
		}
	}
	waitingRow(l.Waiting, row, now)
	if o := l.Paused; o != nil {
		row("paused", "%s", orderText(*o, now))
	}
	for _, p := range l.Problems {
		row("note", "%s", p)
	}
	return lines
}

// heldText is the holder, or why there is none.
func heldText(h consulsession.Hold, now time.Time) string {
	switch p := h.Holder; {
	case p != nil && p.Host == "":
		return fmt.Sprintf("held by a session that isn't onlyone's  session %s  token %d", p.Session, p.Token)
	case p != nil:
		s := fmt.Sprintf("held by %s  pid %d", p.Host, p.Pid)
		if p.Since != "" {
			s += "  since " + since(p.Since, now)
		}
		return fmt.Sprintf("%s  token %d", s, p.Token)
	case h.State == consulsession.Foreign:
		return "not a lock"
	case h.Unclean != nil:
		return fmt.Sprintf("free; its last holder (%s) ended without releasing", h.Unclean.Host)
	}
	return "free"
}

func details(h consulsession.Hold, row func(label, format string, a ...any), now time.Time) {
	if h.Holder != nil && h.Holder.Command != "" {
		row("command", "%s", h.Holder.Command)
	}
	if h.StepDown != nil {
		row("step-down", "asked for %s", orderText(*h.StepDown, now))
	}
	if r := h.LastRun; r != nil {
		row("last run", "%s", lastRun(*r, now))
	}
	if p := h.Period; p != nil {
		row("period", "%s", periodLines(*p))
	}
}

func waitingRow(queue []consulsession.Party, row func(label, format string, a ...any), now time.Time) {
	if len(queue) == 0 {
		return
	}
	var all []string
	for i, p := range queue[:min(len(queue), maxShown)] {
		host, wait := p.Host, ""
		if host == "" {
			host = "a session that isn't onlyone's"
		}
		if d, ok := ago(p.Since, now); ok {
			wait = " (" + short(d) + ")"
		}
		all = append(all, fmt.Sprintf("%d. %s%s", i+1, host, wait))
	}
	if more := len(queue) - maxShown; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	row("waiting", "%s", strings.Join(all, "   "))
}

func lastRun(r consulsession.Run, now time.Time) string {
	s := fmt.Sprintf("%s  %s", r.Host, outcome(r))
	if took, ok := duration(r); ok {
		s += "  took " + short(took)
	}
	if r.Ended != "" {
		s += "  ended " + since(r.Ended, now)
	}
	return s
}

// outcome is how a run ended: an exit code says all of one that ended by itself.
func outcome(r consulsession.Run) string {
	if r.Outcome == "exited" {
		return fmt.Sprintf("exit %d", r.Exit)
	}
	if r.Exit < 0 { // nobody saw one
		return r.Outcome
	}
	return fmt.Sprintf("%s (exit %d)", r.Outcome, r.Exit)
}

func duration(r consulsession.Run) (time.Duration, bool) {
	started, err1 := time.Parse(time.RFC3339, r.Started)
	ended, err2 := time.Parse(time.RFC3339, r.Ended)
	return max(ended.Sub(started), 0), err1 == nil && err2 == nil
}

func periodLines(p consulsession.PeriodRecord) string {
	s := fmt.Sprintf("%s  %s", p.Period, p.State)
	switch {
	case p.State == "ended":
		s += fmt.Sprintf(" (exit %d) on %s at %s", p.Exit, p.Host, instantOf(p.Ended))
	default:
		s += fmt.Sprintf(" on %s at %s", p.Host, instantOf(p.Begun))
	}
	if p.Attempt > 1 {
		s += fmt.Sprintf("  attempt %d", p.Attempt)
	}
	return s
}

func orderText(o consulsession.Order, now time.Time) string {
	s := "by " + o.By
	if o.By == "" {
		s = "by an operator"
	}
	if d, ok := ago(o.Since, now); ok {
		s += " " + short(d) + " ago"
	}
	if until, err := time.Parse(time.RFC3339, o.Until); err == nil {
		s += fmt.Sprintf(", until %s (for %s)", instant(until), short(max(until.Sub(now), 0)))
	} else if o.Session == "" {
		s += ", until it is resumed"
	}
	if o.Reason != "" {
		s += ": " + o.Reason
	}
	return s
}

// watch prints locks on each change, until it is killed or not allowed any more.
func (s *status) watch() error {
	if len(s.names) > 1 {
		return usageError("try: "+s.command("status --watch "+s.names[0]), "--watch takes one NAME (or none, for all locks), got %d", len(s.names))
	}
	changes, troubles := make(chan []consulsession.Lock), make(chan error)
	ctx, cancel := context.WithCancel(s.ctx())
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx, changes, troubles) }()
	err := s.draw(changes, troubles, ended)
	cancel()
	if len(s.names) == 1 {
		return s.problem(s.names[0], err)
	}
	return s.problem("", err)
}

// follow sends what a watch sees to whoever draws it.
func (s *status) follow(ctx context.Context, changes chan<- []consulsession.Lock, troubles chan<- error) error {
	changed := func(locks []consulsession.Lock) bool {
		select {
		case changes <- locks:
			return true
		case <-ctx.Done():
			return false
		}
	}
	trouble := func(err error) {
		select {
		case troubles <- err:
		case <-ctx.Done():
		}
	}
	if len(s.names) == 0 {
		return s.Watch(ctx, "", changed, trouble)
	}
	return s.WatchOne(ctx, s.names[0], func(l consulsession.Lock, t consulsession.Target) bool {
		return changed([]consulsession.Lock{onlyCopy(l, t)})
	}, trouble)
}

// draw prints what it gets: on a terminal in place, and each second, as times pass; elsewhere
// a block for each change.
func (s *status) draw(changes <-chan []consulsession.Lock, troubles <-chan error, ended <-chan error) error {
	redraw := isTerminal(s.in.stdout) && !s.json && !s.quiet
	var tick <-chan time.Time
	if redraw {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		tick = t.C
	}
	var locks []consulsession.Lock
	var last []byte
	var away error
	for {
		changed := false
		select {
		case locks = <-changes:
			now, _ := json.Marshal(locks)
			changed = last == nil || away != nil || !bytes.Equal(now, last)
			if away != nil && !redraw {
				s.warn("Consul answers again")
				changed = !bytes.Equal(now, last)
			}
			last, away = now, nil
		case err := <-troubles:
			if away == nil && !redraw {
				s.warn("%v; retrying", err)
			}
			changed, away = redraw && away == nil, err
		case <-tick:
			changed = last != nil
		case err := <-ended:
			return err
		}
		if !changed {
			continue
		}
		if err := s.frame(locks, redraw, away); err != nil {
			return err
		}
	}
}

// frame is one picture of the locks, without flicker: each line is written over the old one.
func (s *status) frame(locks []consulsession.Lock, redraw bool, away error) error {
	var b bytes.Buffer
	if err := s.print(&b, locks); err != nil {
		return err
	}
	switch {
	case redraw && away != nil:
		fmt.Fprintf(&b, "\n%s; this is what was so before\n", printable(away.Error()))
	case !s.json && !s.quiet && !redraw:
		b.WriteByte('\n')
	}
	if redraw {
		text := fit(b.String(), s.in.stdout.(*checkedWriter).to.(*os.File))
		b.Reset()
		b.WriteString("\x1b[H" + strings.ReplaceAll(text, "\n", clearToEnd+"\n") + "\x1b[J")
	}
	_, err := s.in.stdout.Write(b.Bytes())
	return err
}

// fit cuts a text to what a terminal shows at once: what is larger can't be redrawn in place.
func fit(text string, terminal *os.File) string {
	width, height := terminalSize(terminal)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if more := len(lines) - (height - 1); more > 0 && height > 2 {
		lines = append(lines[:height-2], fmt.Sprintf("(and %d more lines)", more+1))
	}
	for i, line := range lines {
		lines[i] = truncate(line, width-1)
	}
	return strings.Join(lines, "\n") + "\n"
}
