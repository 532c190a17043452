//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/a-seed-0bc5ead7/onlyone/internal/bench/measured"
)

// Figures in pages that people write stand between two comments, and come from the logs.

// benchLog is what `make bench LOG=docs/results/bench.json` has written, below docs.
const benchLog = "results/bench.json"

type benchReport measured.Report

func readBench(name string) (*benchReport, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &benchReport{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// figure has three digits that count; what is below 0.1 has two.
func figure(x float64) string {
	switch {
	case x >= 100 || x == float64(int64(x)):
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.2g", x)
}

func spread(v *measured.Values) string {
	switch {
	case v == nil:
		return ""
	case v.Min == v.Max:
		return figure(v.Value)
	}
	return fmt.Sprintf("%s (%s to %s)", figure(v.Value), figure(v.Min), figure(v.Max))
}

func goal(r measured.Row) string {
	if r.Goal == nil || r.OK == nil {
		return ""
	}
	text := "ratio at most " + figure(r.Goal.Ratio)
	switch {
	case r.Goal.Below > 0:
		text = "below " + figure(r.Goal.Below)
	case r.Goal.Most > 0:
		text = "at most " + figure(r.Goal.Most)
	}
	if !*r.OK {
		return text + ": **missed**"
	}
	return text + ": ok"
}

// speed is the table of the bench.
func (b *benchReport) speed(w writer) {
	if b == nil {
		return
	}
	w("## What it costs\n")
	w("[bench.json](%s): `%s` on %s; %s; %s; %s; load %.1f to %.1f. Each thing %d times where nothing else follows from it, in turn (A, B, A, B, ...): median (min to max); the ratio is that of the medians.\n",
		benchLog, b.Command, b.Date, b.Onlyone, b.Consul, b.Host, b.Load[0], b.Load[1], b.N)
	w("| | onlyone | `consul lock` | ratio | goal |\n|---|---|---|---|---|")
	var losses []string
	for _, row := range b.Rows {
		name, ratio := row.Metric, ""
		if row.Unit != "" {
			name += ", " + row.Unit
		}
		if row.Ratio > 0 {
			ratio = figure(row.Ratio)
		}
		if row.Ratio > 1 && row.PeerSays == "" {
			losses = append(losses, strings.TrimSpace(row.Metric))
		}
		w("| %s | %s | %s | %s | %s |", name, cmp.Or(row.OursSays, spread(row.Ours)), cmp.Or(row.PeerSays, spread(row.Peer)), ratio, goal(row))
	}
	w("")
	if len(losses) > 0 {
		w("onlyone costs more in: %s.\n", strings.Join(losses, "; "))
	}
}

// row is one of the bench's, as a line of a table of two programs.
func (b *benchReport) row(metric, what string) string {
	if b == nil {
		return ""
	}
	for _, row := range b.Rows {
		if row.Metric != metric {
			continue
		}
		side := func(says string, v *measured.Values) string {
			if says != "" || v == nil {
				return says
			}
			return figure(v.Value) + " " + row.Unit
		}
		return fmt.Sprintf("| %s | %s | %s |\n", what, side(row.PeerSays, row.Peer), side(row.OursSays, row.Ours))
	}
	return ""
}

// telling are the faults that stand in README.md and compare.md.
var telling = []string{"cut", "hang", "agent-freeze-short", "keeper-kill", "child-kill"}

// blocks are the texts by the names that stand in the comments.
func (r *results) blocks(bench *benchReport) map[string]string {
	blocks := map[string]string{}
	version := ""
	if v := r.plays.versions(); len(v) > 0 {
		version = v[len(v)-1]
	}
	for _, name := range programNames() {
		var b strings.Builder
		for _, fault := range telling {
			if plays := r.plays.of(version, fault, name); len(plays) > 0 {
				p := worst(plays)
				fmt.Fprintf(&b, "* %s: %s\n", p.What, emphasize(p))
			}
		}
		blocks[name] = b.String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| Consul %s | `consul lock` | onlyone |\n|---|---|---|\n", version)
	for _, fault := range telling {
		if ours, peers := r.plays.of(version, fault, "onlyone"), r.plays.of(version, fault, "consul-lock"); len(ours) > 0 && len(peers) > 0 {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", ours[0].What, emphasize(worst(peers)), emphasize(worst(ours)))
		}
	}
	b.WriteString(bench.row("exit code when the command ends with 7", "exit code when the command ends with 7"))
	b.WriteString(bench.row("SIGTERM while waiting: until it has ended", "SIGTERM while waiting: it ends after"))
	b.WriteString(bench.row("uncontended run: wall time", "a lock that nobody else wants: the run takes"))
	b.WriteString(bench.row("hand-over: after a clean end", "from a command's end to the next one's start"))
	b.WriteString(bench.row("a waiting contender: RSS", "memory of one that waits"))
	blocks["beside"] = b.String()
	return blocks
}

var blockComments = regexp.MustCompile(`(?s)(<!-- measured: ([a-z-]+) -->\n).*?(<!-- /measured -->\n)`)

// fill puts the blocks where a page has the comments for them.
func fill(page string, blocks map[string]string) (string, error) {
	var err error
	page = blockComments.ReplaceAllStringFunc(page, func(s string) string {
		m := blockComments.FindStringSubmatch(s)
		block, ok := blocks[m[2]]
		if !ok {
			err = fmt.Errorf("there is no block %q", m[2])
		}
		return m[1] + block + m[3]
	})
	return page, err
}
