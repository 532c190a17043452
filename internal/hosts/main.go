//go:build linux

// Hosts runs contenders on hosts of their own, breaks what lies between them, and checks
// what was promised. Linux, root.
//
//	go run ./internal/hosts [-for 3m] [-seed N] [-consul 1.8|1.14] [-program onlyone,consul-lock]
//	go run ./internal/hosts -script all|NAME,NAME... [-program onlyone,consul-lock,etcdctl-lock,flock]
//	go run ./internal/hosts -pieces 10m -for 2h
//	go run ./internal/hosts -list
//	go run ./internal/hosts report         # docs/results.md and docs/img from docs/results
//
// Without -script faults come at random: the seed decides which, on whom and for how long
// (not how the processes then race). With -script each fault is played alone, on the host
// that holds the lock, beside other programs that are used for such a thing.
//
// # The rig
//
// Seven network namespaces hang on a bridge: three servers and four hosts, each host with a
// client agent of Consul. Each has its own CLOCK_BOOTTIME and CLOCK_MONOTONIC (a time
// namespace), hours apart. The wall clock is the machine's: Linux has no namespace for it.
// All of it is inside a PID, mount and network namespace that the rig makes, and has no name
// outside: when the rig ends or dies, the kernel ends all processes, and then namespaces,
// bridge and mounts are gone. A folder and a cgroup are left by a rig that was killed; the
// next one removes them.
//
// There is no netem here, so delay is made by a proxy between a program and its agent.
// Processes of all hosts share one kernel and its scheduler: a host that is frozen is one
// whose processes are stopped.
//
// # What is measured
//
// Each contender's command writes from when to when it lived, every 10 ms, see beat.go; so
// does a helper process that it starts, as many commands have one. check.go compares.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// The modes of the binary, by its first argument.
const (
	beatMode   = "beat"
	enterMode  = "enter"
	initMode   = "init"
	directMode = "direct"
	reportMode = "report"
)

// The exit codes.
const (
	exitOK     = 0
	exitBroken = 1 // a promise of onlyone was broken
	exitFailed = 2 // the rig itself failed
	exitUsage  = 64
)

func main() {
	mode, args := "", os.Args[1:]
	if len(args) > 0 {
		mode, args = args[0], args[1:]
	}
	switch mode {
	case beatMode:
		os.Exit(beatMain(args))
	case enterMode:
		os.Exit(enterMain(args))
	case initMode:
		os.Exit(initMain(args))
	case directMode:
		os.Exit(directMain(args))
	case reportMode:
		os.Exit(reportMain(args))
	}
	os.Exit(outsideMain(os.Args[1:]))
}

// options are what the director is told.
type options struct {
	Seed     uint64
	For      time.Duration
	Piece    time.Duration // 0: in one piece
	Consul   string        // its version
	Programs []string
	Scripts  []string // "all": all of them; none: at random
	Log      string   // the results are appended to it
	Evidence string   // where logs go if a promise was broken
	Command  string   // what was typed, for the log

	Dir         string            // the rig's folder
	Binaries    map[string]string // program -> file
	Versions    map[string]string // of what is measured
	Cgroup      string            // the rig's own, or empty
	Explanation explanation
}

// explanation is what `onlyone run --explain --json` prints.
type explanation struct {
	RenewDeadline float64 `json:"renew_deadline_seconds"`
	Poll          float64 `json:"poll_seconds"`
	TakeOver      float64 `json:"take_over_of_a_dead_host_seconds"`
}

// bound is how soon somebody must run again.
func (e explanation) bound() time.Duration { return seconds(e.TakeOver) }

// ridden is the longest outage that mustn't move the job: the renew deadline less one attempt.
func (e explanation) ridden() time.Duration { return seconds(e.RenewDeadline - e.Poll) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// errList says that -list was all that was asked for.
var errList = errors.New("list")

func parse(args []string, out io.Writer) (options, error) {
	o := options{Binaries: map[string]string{}, Versions: map[string]string{}}
	f := flag.NewFlagSet("hosts", flag.ContinueOnError)
	f.SetOutput(out)
	f.Uint64Var(&o.Seed, "seed", 0, "the `seed` of random faults (default: a new one)")
	f.DurationVar(&o.For, "for", 3*time.Minute, "how long faults come at random")
	f.StringVar(&o.Consul, "consul", "", "`version` of Consul: 1.8 or 1.14 (default: 1.8; with -pieces both in turn)")
	f.DurationVar(&o.Piece, "pieces", 0, "run in pieces of this `length`, each on a fresh cluster, with the next seed")
	programs := f.String("program", "onlyone", "`programs` that contend, with commas: "+strings.Join(programNames(), ", "))
	scripts := f.String("script", "", "play these `faults` one by one, with commas; all: each")
	f.StringVar(&o.Log, "log", "", "append the results to this `file`")
	f.StringVar(&o.Evidence, "evidence", "hosts-evidence", "leave the logs in this `folder` if a promise was broken")
	list := f.Bool("list", false, "list the faults and end")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if *list {
		return o, errList
	}
	if o.Consul != "" && !slices.Contains(consulVersions(), o.Consul) {
		return o, fmt.Errorf("there is no Consul %s here, only %s", o.Consul, strings.Join(consulVersions(), " and "))
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000_000)
	}
	o.Programs = splitList(*programs)
	for _, p := range o.Programs {
		if _, ok := programByName(p); !ok {
			return o, fmt.Errorf("unknown program %q; there are %s", p, strings.Join(programNames(), ", "))
		}
	}
	o.Scripts = splitList(*scripts)
	for _, s := range o.Scripts {
		if _, ok := faultByName(s); !ok && s != "all" {
			return o, fmt.Errorf("unknown fault %q; -list lists them", s)
		}
	}
	return o, nil
}

// consulVersions are those that scripts/consul knows.
func consulVersions() []string { return []string{"1.8", "1.14"} }

// command is how to get this run again.
func command(o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "make hosts CONSUL=%s PROGRAM=%s", o.Consul, strings.Join(o.Programs, ","))
	if len(o.Scripts) > 0 {
		fmt.Fprintf(&b, " SCRIPT=%s", strings.Join(o.Scripts, ","))
	} else {
		fmt.Fprintf(&b, " SEED=%d FOR=%s", o.Seed, o.For)
	}
	return b.String()
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func (o options) encode() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func decodeOptions(args []string) (o options, err error) {
	if len(args) != 1 {
		return o, errors.New("this mode is for the rig itself")
	}
	d := json.NewDecoder(bytes.NewReader([]byte(args[0])))
	d.DisallowUnknownFields()
	return o, d.Decode(&o)
}
