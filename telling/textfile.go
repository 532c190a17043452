package telling

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxTextfile is how much of an old file is read, in bytes: we write 3 KiB.
const maxTextfile = 64 << 10

// maxAhead is how far the time of the last success may be ahead of the clock, after a clock
// was set back. What is further ahead is garbage: no alert would ever be raised again.
const maxAhead = 24 * time.Hour

// Textfile is a file for the textfile collector of node_exporter, which takes FOLDER/*.prom:
// for jobs that end before anybody could scrape them.
//
// One lock has one file on each host. What an earlier run has left in it is kept where a new
// run has nothing newer to say, as the time of the last success.
type Textfile struct{ path, name string }

// history is what a file says of the runs of one lock on this host.
type history struct {
	name                          string
	outcome                       string
	exit                          int
	attempt, lastRun, lastSuccess float64 // Unix time; 0: never
	duration                      float64 // of the last run, in seconds
	attempts                      map[string]float64
}

// A fileMetric is a metric of a textfile, and how it is made of a history.
type fileMetric struct {
	Desc
	write func(h history, s series)
}

var byName = []string{"name"}

// fileMetrics is all that a textfile has.
var fileMetrics = []fileMetric{
	{Desc{"onlyone_last_attempt_timestamp_seconds", "gauge", byName, "When onlyone last ended on this host, with or without having run the command (Unix time)."},
		func(h history, s series) { s.set(h.attempt, h.name) }},
	{Desc{"onlyone_last_outcome", "gauge", []string{"name", "outcome"}, "1 for the outcome of the last attempt on this host."},
		func(h history, s series) { s.set(1, h.name, h.outcome) }},
	{Desc{"onlyone_last_exit_code", "gauge", byName, "What onlyone ended with at the last attempt on this host."},
		func(h history, s series) { s.set(float64(h.exit), h.name) }},
	{Desc{"onlyone_last_run_timestamp_seconds", "gauge", byName, "When the command last ended on this host (Unix time, 0: it never ran here)."},
		func(h history, s series) { s.set(h.lastRun, h.name) }},
	{Desc{"onlyone_last_duration_seconds", "gauge", byName, "How long the command last ran on this host."},
		func(h history, s series) { s.set(h.duration, h.name) }},
	{Desc{"onlyone_last_success_timestamp_seconds", "gauge", byName, "When the command last ended with exit code 0 on this host (Unix time, 0: never)."},
		func(h history, s series) { s.set(h.lastSuccess, h.name) }},
	{Desc{"onlyone_attempts_total", "counter", []string{"name", "outcome"}, "How often onlyone ended on this host, by outcome."},
		func(h history, s series) {
			for _, outcome := range outcomes {
				s.set(h.attempts[outcome], h.name, outcome)
			}
		}},
}

// FileMetrics describes all metrics of a textfile.
func FileMetrics() []Desc {
	var all []Desc
	for _, m := range fileMetrics {
		all = append(all, m.Desc)
	}
	return all
}

// NewTextfile checks that path can be written, that the collector will take it, and that it
// isn't the file of another lock. name is the lock's.
func NewTextfile(path, name string) (*Textfile, error) {
	fail := func(err error) (*Textfile, error) {
		return nil, fmt.Errorf("cannot write the metrics to %s: %w", path, err)
	}
	if !strings.HasSuffix(path, ".prom") {
		return fail(fmt.Errorf("node_exporter only reads names that end in .prom"))
	}
	at, err := target(path)
	if err != nil {
		return fail(err)
	}
	f := &Textfile{path: at, name: name}
	if err := f.ours(); err != nil {
		return fail(err)
	}
	return f, nil
}

// ours refuses the file of another lock.
func (f *Textfile) ours() error {
	if other := f.otherName(f.old()); other != "" {
		return fmt.Errorf("it has the metrics of the lock %s, and each lock needs a file of its own; remove it if %s isn't run here any more", other, other)
	}
	return nil
}

// Write adds r to the file, unless another lock has made it since NewTextfile. Its mode is 0644:
// the collector is another user.
func (f *Textfile) Write(r Run) error {
	if f == nil {
		return nil
	}
	if r.Ended.IsZero() {
		r.Ended = time.Now()
	}
	defer lockFolder(filepath.Dir(f.path))()
	err := f.ours()
	if err == nil {
		err = replace(f.path, f.read(r.Ended).with(r).text(), 0o644, false)
	}
	if err != nil {
		return fmt.Errorf("cannot write the metrics to %s: %w", f.path, err)
	}
	return nil
}

// old is the text that is there, or nothing. A file that has come in its place and isn't a
// regular one must not make us wait.
func (f *Textfile) old() string {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	if fi, err := file.Stat(); err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(file, maxTextfile))
	return string(text)
}

// otherName is another lock whose metrics the text has.
func (f *Textfile) otherName(text string) string {
	for line := range strings.Lines(text) {
		rest, ours := strings.CutPrefix(line, `onlyone_last_attempt_timestamp_seconds{name="`)
		name, _, whole := strings.Cut(rest, `"}`)
		if ours && whole && name != f.name {
			return name
		}
	}
	return ""
}

// read takes from the old file what a new run may have nothing to say of. Only lines that are
// exactly as we write them count, so garbage means nothing.
func (f *Textfile) read(now time.Time) history {
	values := map[string]float64{}
	for line := range strings.Lines(f.old()) {
		series, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "} ")
		if v, err := strconv.ParseFloat(text, 64); err == nil && v >= 0 && v <= 1<<53 {
			values[series+"}"] = v
		}
	}
	of := func(metric string, labels ...string) float64 {
		return values[seriesName(metric, []string{"name", "outcome"}[:len(labels)], labels)]
	}
	moment := func(metric string) float64 {
		if v := of(metric, f.name); v <= seconds(now.Add(maxAhead)) {
			return v
		}
		return 0
	}
	h := history{name: f.name, attempts: map[string]float64{},
		lastRun:     moment("onlyone_last_run_timestamp_seconds"),
		lastSuccess: moment("onlyone_last_success_timestamp_seconds"),
		duration:    of("onlyone_last_duration_seconds", f.name)}
	for _, outcome := range outcomes {
		h.attempts[outcome] = math.Trunc(of("onlyone_attempts_total", f.name, outcome))
	}
	return h
}

// with is h after the run r.
func (h history) with(r Run) history {
	h.attempt, h.outcome, h.exit = seconds(r.Ended), r.Outcome, r.Exit
	h.attempts[r.Outcome]++
	if r.ran() {
		h.lastRun, h.duration = h.attempt, r.Ran.Seconds()
	}
	if r.succeeded() {
		h.lastSuccess = h.attempt
	}
	return h
}

func (h history) text() []byte {
	var out bytes.Buffer
	for _, m := range fileMetrics {
		s := series{m.Desc, &out}
		s.head()
		m.write(h, s)
	}
	return out.Bytes()
}

// seconds is t as Unix time; a millisecond is exact enough for people.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
