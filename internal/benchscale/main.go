//go:build linux

// Benchscale measures what many contenders, and many locks, cost one real Consul server.
//
//	go run ./internal/benchscale [-version 1.14] [-real 100] [-sizes 10,100,1000] [-only REGEXP]
//
// Up to -real contenders are onlyone processes; more than that are the package
// consulsession in this process, each contender with connections of its own. Times and
// rates are of this machine with its load, which is printed; numbers of requests and of
// Raft writes aren't. docs/scale.md says what follows. Linux only.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := bench(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// lab is what all parts share.
type lab struct {
	server  *consultest.Server
	version string
	onlyone string
	dir     string
	sizes   []int
	real    int
}

func bench(ctx context.Context) error {
	version := flag.String("version", "1.14", "of Consul: 1.8 or 1.14")
	real := flag.Int("real", 100, "up to `N` contenders are processes")
	sizes := flag.String("sizes", "10,100,1000", "`N`s of contenders")
	only := flag.String("only", "", "only the parts that match `REGEXP`: hand-over, idle, crash, paused, consul-lock, constants")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	l := &lab{real: *real}
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 2 {
			return fmt.Errorf("-sizes %q: want numbers of 2 and more", *sizes)
		}
		l.sizes = append(l.sizes, n)
	}
	if l.dir, err = os.MkdirTemp("", "onlyone-benchscale-"); err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	for _, kv := range os.Environ() { // what would change the programs that are measured
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "ONLYONE_") || strings.HasPrefix(name, "CONSUL_HTTP_") {
			os.Unsetenv(name)
		}
	}
	l.onlyone = filepath.Join(l.dir, "onlyone")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=urfave_cli_no_docs", "-buildvcs=false", "-ldflags=-s -w", "-o", l.onlyone, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build onlyone: %w\n%s", err, out)
	}
	l.version = *version
	if err := l.serve(); err != nil {
		return err
	}
	defer func() { l.server.Close() }()
	say("%s", commandLine())
	say("%s; %s, %d cores, load %s", firstLine(l.server.Binary, "version"), runtime.Version(), runtime.NumCPU(), load())
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{{"hand-over", l.handOvers}, {"idle", l.idle}, {"crash", l.crashes}, {"paused", l.paused}, {"consul-lock", l.consulLock}, {"constants", l.constants}} {
		if !match.MatchString(p.name) {
			continue
		}
		say("\n%s   (load %s)", p.name, load())
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("cannot measure %s: %w", p.name, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// serve starts a server of its own.
func (l *lab) serve() error {
	s, err := consultest.New(consultest.Options{Version: l.version, Conns: 15000})
	if err == nil {
		l.server = s
	}
	return err
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func commandLine() string {
	return "go run ./internal/benchscale " + strings.Join(os.Args[1:], " ")
}

func firstLine(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// load is that of the last minute, five minutes, quarter of an hour.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}

// times are measurements of one thing.
type times []time.Duration

func (t times) String() string {
	if len(t) == 0 {
		return "none"
	}
	s := slicesSorted(t)
	at := func(q float64) time.Duration {
		return s[min(int(q*float64(len(s))), len(s)-1)].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s, p90 %s, max %s", at(.5), at(.9), at(1))
}
