package consultest

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childName is the first argument of a test binary that is a Child.
const childName = "consultest-child"

// Child is the command line of a guarded command that writes when it lives into file.
//
// What it writes is for ReadIntervals: lines "start TOKEN BOOTTIME PID TAG", "end ...", and
// "term ..." when SIGTERM came and is ignored. If another Child of that file is alive at its
// start (which the kernel knows, by a lock on a file), the line is "overlap ...".
//
// The test's TestMain must call ChildMain first.
func Child(file string, o ChildOptions) []string {
	self, err := os.Executable()
	if err != nil {
		panic(err) // no test can do without
	}
	return []string{self, childName, "-tag=" + o.Tag, "-for=" + o.For.String(), "-until=" + o.Until,
		"-ignore-term=" + strconv.FormatBool(o.IgnoreTerm), "-exit=" + strconv.Itoa(o.Exit), file}
}

// ChildOptions say how a Child lives.
type ChildOptions struct {
	Tag        string        // without spaces; in each line
	For        time.Duration // how long; 0: see Until
	Until      string        // it ends when this file exists; empty and no For: it never ends
	IgnoreTerm bool
	Exit       int // its exit code
}

// ChildMain is the whole life of this process if it was started as a Child.
func ChildMain() {
	if len(os.Args) > 1 && os.Args[1] == childName {
		os.Exit(childMain(os.Args[2:]))
	}
}

func childMain(args []string) int {
	var o ChildOptions
	f := flag.NewFlagSet(childName, flag.ExitOnError)
	f.StringVar(&o.Tag, "tag", "", "")
	f.StringVar(&o.Until, "until", "", "")
	f.DurationVar(&o.For, "for", 0, "")
	f.BoolVar(&o.IgnoreTerm, "ignore-term", false, "")
	f.IntVar(&o.Exit, "exit", 0, "")
	_ = f.Parse(args)
	term := make(chan os.Signal, 1)
	if o.IgnoreTerm {
		signal.Notify(term, syscall.SIGTERM)
	}
	out, err := os.OpenFile(f.Arg(0), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 111
	}
	write := func(what string) { // one write, so that lines of several processes don't mix
		_, _ = fmt.Fprintf(out, "%s %s %d %d %s\n", what, os.Getenv("FENCE_TOKEN"), BootNow(), os.Getpid(), o.Tag)
	}
	alive, err := os.OpenFile(f.Arg(0)+".alive", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 111
	}
	// The kernel gives the lock back when the process is gone, however it ends.
	if syscall.Flock(int(alive.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		write("overlap")
	}
	write("start")
	var over <-chan time.Time
	if o.For > 0 {
		over = time.After(o.For)
	}
	for {
		poll := time.After(5 * time.Millisecond)
		if o.Until == "" {
			poll = nil
		}
		select {
		case <-term:
			write("term")
		case <-poll:
			if _, err := os.Stat(o.Until); err != nil {
				continue
			}
			write("end")
			return o.Exit
		case <-over:
			write("end")
			return o.Exit
		}
	}
}

// An Interval is the life of one Child. Times are on the boot clock.
type Interval struct {
	Token    uint64
	Tag      string
	Pid      int
	Start    time.Duration
	Term     time.Duration // 0: it saw no SIGTERM
	End      time.Duration // 0: it was killed, or it runs
	Overlaps bool          // another one was alive when it started
}

// ReadIntervals reads what the children of a file have written, in the order of their starts.
func ReadIntervals(tb testing.TB, file string) []Interval {
	tb.Helper()
	all, err := readIntervals(file)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

func readIntervals(file string) ([]Interval, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Interval
	overlaps := map[int]bool{}
	last := map[int]int{} // by pid
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Split(sc.Text(), " ")
		if len(w) != 5 {
			return nil, fmt.Errorf("%s: malformed line %q", file, sc.Text())
		}
		token, err1 := strconv.ParseUint(w[1], 10, 64)
		at, err2 := strconv.ParseInt(w[2], 10, 64)
		pid, err3 := strconv.Atoi(w[3])
		if err := errors.Join(err1, err2, err3); err != nil && w[1] != "" {
			return nil, fmt.Errorf("%s: malformed line %q: %w", file, sc.Text(), err)
		}
		i, started := last[pid]
		switch {
		case w[0] == "overlap":
			overlaps[pid] = true
		case w[0] == "start":
			last[pid] = len(all)
			all = append(all, Interval{Token: token, Tag: w[4], Pid: pid, Start: time.Duration(at), Overlaps: overlaps[pid]})
			delete(overlaps, pid)
		case w[0] == "term" && started:
			if all[i].Term == 0 {
				all[i].Term = time.Duration(at)
			}
		case w[0] == "end" && started:
			all[i].End = time.Duration(at)
		default:
			return nil, fmt.Errorf("%s: line %q out of place", file, sc.Text())
		}
	}
	return all, sc.Err()
}

// NoOverlap checks that no two lived at one instant, and that tokens rise (consul lock
// gives none).
func NoOverlap(tb testing.TB, all []Interval) {
	tb.Helper()
	for _, problem := range problems(all) {
		tb.Error(problem)
	}
}

func problems(all []Interval) []string {
	var list []string
	for i, b := range all {
		if b.Overlaps {
			list = append(list, fmt.Sprintf("%s started while another one was alive", b))
		}
		if i == 0 {
			continue
		}
		a := all[i-1]
		if latest := max(a.Start, a.Term, a.End); b.Start < latest {
			list = append(list, fmt.Sprintf("%s started %s before the last sign of life of %s", b, latest-b.Start, a))
		}
		if a.Token != 0 && b.Token != 0 && b.Token <= a.Token {
			list = append(list, fmt.Sprintf("the token fell: %s came after %s", b, a))
		}
	}
	return list
}

func (i Interval) String() string {
	return fmt.Sprintf("%s (pid %d, token %d)", i.Tag, i.Pid, i.Token)
}
