package telling

import (
	"bytes"
	"strconv"
	"strings"
)

// Desc says what a metric is. docs/metrics.md is held against it.
type Desc struct {
	Name   string
	Type   string   // "gauge", "counter" or "histogram"
	Labels []string // in this order
	Help   string   // one line without a backslash
}

// A series writes samples of one metric in Prometheus' text format 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
type series struct {
	Desc
	out *bytes.Buffer
}

// head begins a metric. node_exporter wants the same HELP in all of its files.
func (s series) head() {
	s.out.WriteString("# HELP " + s.Name + " " + s.Help + "\n# TYPE " + s.Name + " " + s.Type + "\n")
}

// set writes the sample that has these values of the labels.
func (s series) set(value float64, labels ...string) {
	s.sample("", s.Labels, labels, value)
}

// sample writes one line. suffix is what a histogram adds to the name.
func (s series) sample(suffix string, names, values []string, value float64) {
	s.out.WriteString(seriesName(s.Name+suffix, names, values) + " " + number(value) + "\n")
}

// seriesName is NAME{LABEL="VALUE",...}.
func seriesName(name string, labels, values []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var b strings.Builder
	b.WriteString(name)
	for i, label := range labels {
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		b.WriteString(label + `="` + escape.Replace(strings.ToValidUTF8(values[i], "?")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	return b.String()
}

// number prints a fencing token or a timestamp as one would type it.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// A histogram counts durations by size.
type histogram struct {
	counts [len(bounds) + 1]uint64 // the last: longer than all bounds
	sum    float64
}

// bounds are in seconds: a request to a local agent takes a millisecond, one across a busy
// cluster some hundred, and one that takes longer than the poll (2 s) is given up.
var bounds = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

func (h *histogram) observe(seconds float64) {
	i := 0
	for i < len(bounds) && seconds > bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += seconds
}

// write writes the cumulated buckets, the sum and the count.
func (h *histogram) write(s series, labels ...string) {
	names := append(append([]string{}, s.Labels...), "le")
	var n uint64
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(bounds) {
			le = number(bounds[i])
		}
		s.sample("_bucket", names, append(append([]string{}, labels...), le), float64(n))
	}
	s.sample("_sum", s.Labels, labels, h.sum)
	s.sample("_count", s.Labels, labels, float64(n))
}
