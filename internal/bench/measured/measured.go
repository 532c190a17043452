// Package measured is what a bench has measured, as JSON: internal/bench writes it, internal/hosts
// makes the tables of the docs of it.
package measured

// A Report is one run of the bench.
type Report struct {
	Command string     `json:"command"`
	Date    string     `json:"date"`
	Onlyone string     `json:"onlyone"`
	Consul  string     `json:"consul"`
	Host    string     `json:"host"`
	N       int        `json:"n"` // how often each thing was done where nothing else follows from it
	Seconds float64    `json:"seconds"`
	Load    [2]float64 `json:"load"` // of the machine, before and after
	Rows    []Row      `json:"rows"`
}

// A Row is one thing that was measured, of onlyone and of its peer.
type Row struct {
	Metric   string  `json:"metric"`
	Unit     string  `json:"unit"`
	Ours     *Values `json:"onlyone,omitempty"`
	Peer     *Values `json:"peer,omitempty"`
	OursSays string  `json:"onlyone_says,omitempty"` // in the place of the values
	PeerSays string  `json:"peer_says,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	Goal     *Goal   `json:"goal,omitempty"`
	OK       *bool   `json:"ok,omitempty"` // whether the goal was reached
}

// Values sums up the measurements of one thing, in its row's unit.
type Values struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	Value  float64 `json:"value"` // what the goal and the ratio are about: the median or a quantile
	N      int     `json:"n"`
}

// A Goal is what a row ought to be; the field that isn't 0 counts.
type Goal struct {
	Ratio float64 `json:"ratio,omitempty"` // at most, ours to the peer's
	Below float64 `json:"below,omitempty"` // ours
	Most  float64 `json:"most,omitempty"`  // ours
}
