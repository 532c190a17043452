//go:build linux

// Bench measures what onlyone costs, beside `consul lock` against the same Consul server.
//
//	go run ./internal/bench [-n 20] [-json] [-log FILE] [-only REGEXP] [-bin FILE] [-consul FILE]
//
// What is compared runs in turn (A, B, A, B, ...), so that a machine with other work
// slows both down. A median stands with its smallest and largest value; a ratio is that
// of the medians. The load average at the beginning and at the end stands above them. Sizes
// are in MB of 1000000 bytes. Linux only.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

func main() {
	// The deadline worker has guards, which are this same binary.
	switch {
	case supervisor.IsShim(os.Args):
		os.Exit(supervisor.ShimMain(os.Args))
	case supervisor.IsGuard(os.Args):
		os.Exit(supervisor.GuardMain(os.Args, nil))
	case len(os.Args) > 1 && os.Args[1] == workerArg:
		os.Exit(workerMain(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := bench(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// A part measures some rows.
type part struct {
	name string
	rows func(context.Context, *lab, int) ([]row, error)
}

func bench(ctx context.Context) error {
	n := flag.Int("n", 20, "measure each thing this many `times`")
	asJSON := flag.Bool("json", false, "print JSON")
	log := flag.String("log", "", "keep what -json prints in this `FILE`, too")
	only := flag.String("only", "", "only the parts that match `REGEXP`: uncontended, first-request, steady, hand-over, dead-host, ends, deadline")
	bin := flag.String("bin", "", "measure this onlyone `FILE` instead of building one")
	consul := flag.String("consul", "", "the Consul `FILE` (default: what scripts/consul prints)")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if flag.NArg() > 0 || *n < 1 {
		return fmt.Errorf("want flags only, and -n of 1 or more; see -h")
	}
	begin := time.Now()
	l, err := newLab(ctx, *consul, *bin)
	if err != nil {
		return err
	}
	defer l.close()
	report := report{Command: "make bench", Date: begin.UTC().Format(time.RFC3339), Onlyone: l.onlyoneVersion(ctx), Consul: l.version, Host: hostInfo(), N: *n, Load: [2]float64{load()}}
	for _, p := range []part{
		{"uncontended", uncontended},
		{"first-request", firstRequest},
		{"steady", steady},
		{"hand-over", handOver},
		{"dead-host", deadHost},
		{"ends", ends},
		{"deadline", deadline},
	} {
		if !match.MatchString(p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %3.0fs %s\n", time.Since(begin).Seconds(), p.name)
		rows, err := p.rows(ctx, l, *n)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return fmt.Errorf("cannot measure %s: %w%s", p.name, err, l.lastWords())
		}
		report.Rows = append(report.Rows, rows...)
	}
	report.Seconds = time.Since(begin).Seconds()
	report.Load[1] = load()
	if *log != "" {
		var b bytes.Buffer
		if err := report.json(&b); err != nil {
			return err
		}
		if err := os.WriteFile(*log, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if *asJSON {
		return report.json(os.Stdout)
	}
	return report.table(os.Stdout)
}
