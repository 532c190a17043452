//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/a-seed-0bc5ead7/onlyone/internal/bench/measured"
)

// values are measurements of one thing, in the row's unit.
type values []float64

func (v values) sorted() values { return slices.Sorted(slices.Values(v)) }

// quantile is the smallest value that at least the share q doesn't exceed.
func (v values) quantile(q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := v.sorted()
	i := int(q*float64(len(s)) + 0.999999)
	return s[min(max(i-1, 0), len(s)-1)]
}

func (v values) median() float64 {
	if len(v) == 0 {
		return 0
	}
	s := v.sorted()
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// goal is what a row ought to be.
type goal measured.Goal

func (g goal) String() string {
	switch {
	case g.Ratio > 0:
		return fmt.Sprintf("<= %.2gx", g.Ratio)
	case g.Below > 0:
		return fmt.Sprintf("< %.3g", g.Below)
	case g.Most > 0:
		return fmt.Sprintf("<= %.3g", g.Most)
	}
	return ""
}

// row is one line of the report. What counts is the median, or the quantile Quantile.
type row struct {
	Metric   string
	Unit     string
	Ours     values
	Peer     values
	OursSays string // in the place of the values
	PeerSays string
	Quantile float64
	Goal     goal
}

func (r row) of(v values) float64 {
	if r.Quantile > 0 {
		return v.quantile(r.Quantile)
	}
	return v.median()
}

func (r row) ratio() float64 {
	if p := r.of(r.Peer); p > 0 {
		return r.of(r.Ours) / p
	}
	return 0
}

func (r row) verdict() string {
	ours, ok := r.of(r.Ours), true
	switch {
	case r.Goal == goal{}:
		return ""
	case r.Goal.Ratio > 0:
		ok = r.ratio() > 0 && r.ratio() <= r.Goal.Ratio
	case r.Goal.Below > 0:
		ok = ours < r.Goal.Below
	case r.Goal.Most > 0:
		ok = ours <= r.Goal.Most
	}
	if ok {
		return "ok"
	}
	return "MISSED"
}

func (r row) cell(v values) string {
	if len(v) == 0 {
		return ""
	}
	s := v.sorted()
	return fmt.Sprintf("%s [%s..%s]", number(r.of(v)), number(s[0]), number(s[len(s)-1]))
}

func number(x float64) string {
	switch {
	case x == float64(int64(x)) && x < 1000:
		return fmt.Sprintf("%d", int64(x))
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// report is the result of the program.
type report struct {
	Command string // how to get it again
	Date    string
	Onlyone string // its version, with the commit
	Consul  string
	Host    string
	N       int
	Seconds float64
	Load    [2]float64 // at the beginning and at the end
	Rows    []row
}

func (r report) table(w io.Writer) error {
	lines := [][]string{{"metric", "onlyone", "consul lock", "ratio", "goal", ""}}
	for _, row := range r.Rows {
		ratio, ours, peer := "", cmp.Or(row.OursSays, row.cell(row.Ours)), cmp.Or(row.PeerSays, row.cell(row.Peer))
		if x := row.ratio(); x > 0 {
			ratio = fmt.Sprintf("%.2f", x)
		}
		name := row.Metric
		if row.Unit != "" {
			name += ", " + row.Unit
		}
		lines = append(lines, []string{name, ours, peer, ratio, row.Goal.String(), row.verdict()})
	}
	width := make([]int, len(lines[0]))
	for _, l := range lines {
		for i, c := range l {
			width[i] = max(width[i], len(c))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s; %s; n=%d, %.0f s, load %.1f to %.1f; median [min..max]\n\n", r.Onlyone, r.Consul, r.Host, r.N, r.Seconds, r.Load[0], r.Load[1])
	for i, l := range lines {
		var line strings.Builder
		for i, c := range l {
			fmt.Fprintf(&line, "%-*s  ", width[i], c)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		if i == 0 {
			for _, n := range width[:len(width)-1] {
				b.WriteString(strings.Repeat("-", n) + "  ")
			}
			b.WriteString("\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r report) json(w io.Writer) error {
	sum := func(row row, v values) *measured.Values {
		if len(v) == 0 {
			return nil
		}
		return &measured.Values{Median: v.median(), Min: slices.Min(v), Max: slices.Max(v), P90: v.quantile(0.9), P99: v.quantile(0.99), Value: row.of(v), N: len(v)}
	}
	out := measured.Report{Command: r.Command, Date: r.Date, Onlyone: r.Onlyone, Consul: r.Consul, Host: r.Host, N: r.N, Seconds: r.Seconds, Load: r.Load}
	group := ""
	for _, row := range r.Rows {
		name, more := strings.CutPrefix(row.Metric, "  ")
		if more && group != "" {
			name = group + ": " + name
		} else if !more {
			group, _, _ = strings.Cut(name, ":")
		}
		j := measured.Row{Metric: name, Unit: row.Unit, Ours: sum(row, row.Ours), Peer: sum(row, row.Peer), OursSays: row.OursSays, PeerSays: row.PeerSays, Ratio: row.ratio()}
		if v := row.verdict(); v != "" {
			ok := v == "ok"
			j.Goal, j.OK = (*measured.Goal)(&row.Goal), &ok
		}
		out.Rows = append(out.Rows, j)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
