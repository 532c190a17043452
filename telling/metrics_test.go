package telling

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parse reads text as Prometheus does.
func parse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// value is that of the sample with these labels ("name", "backup", ...), or -1.
func value(families map[string]*dto.MetricFamily, metric string, labels ...string) float64 {
	for _, m := range families[metric].GetMetric() {
		got := []string{}
		for _, l := range m.Label {
			got = append(got, l.GetName(), l.GetValue())
		}
		if slices.Equal(got, labels) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

// isAsDescribed: the families are those of descs, with their types, texts and labels.
func isAsDescribed(t *testing.T, families map[string]*dto.MetricFamily, descs []Desc) {
	t.Helper()
	for _, d := range descs {
		f := families[d.Name]
		if f == nil || f.GetHelp() != d.Help || f.GetType().String() != strings.ToUpper(d.Type) || len(f.Metric) == 0 {
			t.Errorf("%s is %v", d.Name, f)
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName())
			}
			if !slices.Equal(labels, d.Labels) {
				t.Errorf("%s has the labels %q, want %q", d.Name, labels, d.Labels)
			}
		}
	}
	if len(families) != len(descs) {
		t.Errorf("%d metrics, want %d", len(families), len(descs))
	}
}

// useAll calls each method once.
func useAll(m *Metrics) {
	m.State(Contending)
	m.Queue(2, 3)
	m.Acquired(25)
	m.Lease(20 * time.Second)
	m.State(Running)
	m.Check(OK, 3*time.Millisecond)
	m.Renew(Silent, 2*time.Second)
	m.Lost(LostByProof)
	m.Run(Exited)
	m.Restarted()
	m.PeriodSkipped()
	m.Released()
}

func TestLiveMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMetrics("backup", "1.2.3")
		isAsDescribed(t, parse(t, m.text()), LiveMetrics())
		want := func(when string, wanted map[string]float64) {
			t.Helper()
			families := parse(t, m.text())
			for metric, v := range wanted {
				name, labels, _ := strings.Cut(metric, " ")
				if got := value(families, name, append([]string{"name", "backup"}, strings.Fields(labels)...)...); got != v {
					t.Errorf("%s: %s is %v, want %v", when, metric, got, v)
				}
			}
		}
		want("at first", map[string]float64{"onlyone_held": 0, "onlyone_state state contending": 0, "onlyone_runs_total outcome exited": 0, "onlyone_lost_total cause silence": 0})

		m.State(Contending)
		m.Queue(2, 3)
		want("while it waits", map[string]float64{"onlyone_held": 0, "onlyone_state state contending": 1, "onlyone_state state running": 0,
			"onlyone_queue_position": 2, "onlyone_waiters": 3, "onlyone_fence_token": 0, "onlyone_lease_remaining_seconds": 0})

		m.Acquired(9007199254740993)
		m.Lease(20 * time.Second)
		m.State(Running)
		time.Sleep(3500 * time.Millisecond)
		want("while it runs", map[string]float64{"onlyone_held": 1, "onlyone_state state contending": 0, "onlyone_state state running": 1,
			"onlyone_queue_position": 0, "onlyone_waiters": 0, "onlyone_fence_token": 9007199254740992, "onlyone_lease_remaining_seconds": 16.5})
		time.Sleep(time.Minute)
		want("when the lease is over", map[string]float64{"onlyone_lease_remaining_seconds": 0})

		m.Lost(LostBySilence)
		m.Run(Lost)
		m.Run("an error text that nobody should give")
		m.Restarted()
		m.PeriodSkipped()
		m.PeriodSkipped()
		m.Released()
		m.State("some other")
		want("when it is lost", map[string]float64{"onlyone_held": 0, "onlyone_fence_token": 0, "onlyone_lease_remaining_seconds": 0,
			"onlyone_state state running": 0, "onlyone_lost_total cause silence": 1, "onlyone_lost_total cause other": 0,
			"onlyone_runs_total outcome lost": 1, "onlyone_runs_total outcome other": 1, "onlyone_restarts_total": 1, "onlyone_period_skipped_total": 2})
	})
}

func TestHistogram(t *testing.T) {
	m := NewMetrics("backup", "1")
	for _, d := range []time.Duration{0, time.Millisecond, 1001 * time.Microsecond, 2 * time.Second, 11 * time.Second} {
		m.Check(OK, d)
	}
	m.Check(Silent, time.Hour)
	families := parse(t, m.text())
	if value(families, "onlyone_checks_total", "name", "backup", "result", "ok") != 5 || value(families, "onlyone_checks_total", "name", "backup", "result", "silent") != 1 {
		t.Error(families["onlyone_checks_total"])
	}
	h := families["onlyone_check_seconds"].Metric[0].Histogram
	got := map[float64]uint64{}
	for _, b := range h.Bucket {
		got[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	if h.GetSampleCount() != 6 || h.GetSampleSum() < 3613 || got[.001] != 2 || got[.0025] != 3 || got[1] != 3 || got[2.5] != 4 || got[10] != 4 || len(got) != len(bounds)+1 {
		t.Errorf("%v", h)
	}
}

// A name with everything in it that the format knows.
func TestLabelsAreEscaped(t *testing.T) {
	name := "a\\b\"c\nd{},=é"
	families := parse(t, NewMetrics(name+"\xff", "1").text())
	if value(families, "onlyone_held", "name", name+"?") != 0 {
		t.Error(families["onlyone_held"])
	}
}

func TestMetricsConcurrently(t *testing.T) {
	m := NewMetrics("backup", "1")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				useAll(m)
				m.text()
				m.leading()
			}
		})
	}
	all.Wait()
	families := parse(t, m.text())
	if got := value(families, "onlyone_runs_total", "name", "backup", "outcome", "exited"); got != 400 {
		t.Errorf("%v runs", got)
	}
}

func listen(t *testing.T, m *Metrics) (*Server, string) {
	t.Helper()
	s, err := Listen("127.0.0.1:0", m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, "http://" + s.Addr().String()
}

func get(t *testing.T, method, url string) (code int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func TestServer(t *testing.T) {
	m := NewMetrics("backup", "1.2.3")
	_, url := listen(t, m)
	code, header, body := get(t, "GET", url+"/metrics")
	if code != 200 || header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("/metrics: %d, %v", code, header)
	}
	isAsDescribed(t, parse(t, []byte(body)), LiveMetrics())

	leader := func(when string, want int, text string) {
		t.Helper()
		if code, _, body := get(t, "GET", url+"/leader"); code != want || body != text+"\n" {
			t.Errorf("/leader %s: %d %q, want %d %q", when, code, body, want, text)
		}
	}
	leader("at first", 503, "")
	m.State(Contending)
	leader("while it waits", 503, "contending")
	m.Acquired(25)
	m.Lease(time.Hour)
	leader("before the command", 503, "contending")
	m.State(Running)
	leader("while it runs", 200, "running")
	m.Lease(-time.Second)
	leader("after the lease", 503, "running")
	m.Lease(time.Hour)
	m.State(Stopping)
	leader("while it stops", 503, "stopping")
	m.State(Running)
	m.Released()
	leader("when it is released", 503, "running")
	m.Lease(time.Hour)
	leader("after a late extension", 503, "running")

	for _, test := range []struct {
		method, path string
		code         int
	}{{"GET", "/healthz", 200}, {"HEAD", "/healthz", 200}, {"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"DELETE", "/leader", 405}, {"GET", "/", 404}, {"GET", "/metrics/x", 404}, {"GET", "/debug/pprof/", 404}} {
		if code, _, _ := get(t, test.method, url+test.path); code != test.code {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, code, test.code)
		}
	}
}

func TestListenErrors(t *testing.T) {
	s, _ := listen(t, NewMetrics("backup", "1"))
	taken := s.Addr().String()
	for addr, want := range map[string]string{
		taken:             "cannot serve metrics on " + taken + ": bind: address already in use",
		"9099":            "is not HOST:PORT",
		"":                "is not HOST:PORT",
		"unix:/tmp/x":     "cannot serve metrics on unix:/tmp/x: ",
		"/tmp/x":          "is not HOST:PORT",
		"127.0.0.1:99999": "cannot serve metrics on 127.0.0.1:99999: ",
		"127.0.0.1:x y":   "cannot serve metrics on 127.0.0.1:x y: ",
	} {
		s, err := Listen(addr, NewMetrics("backup", "1"))
		if err == nil {
			s.Close()
			t.Errorf("%q is taken", addr)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", addr, err, want)
		}
	}
}

// Who opens connections and says nothing gets a few, and a scraper that comes when they have
// gone is served.
func TestServerIsBounded(t *testing.T) {
	s, url := listen(t, NewMetrics("backup", "1"))
	var idle []net.Conn
	for range maxConns {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		idle = append(idle, c)
	}
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadAll(c); err != nil { // EOF: it is closed at once, not after a time-out
		t.Error(err)
	}
	for _, c := range idle {
		c.Close()
	}
	var last error
	for range 1000 { // the server notices in its own time
		resp, err := http.Get(url + "/healthz")
		if last = err; err == nil {
			resp.Body.Close()
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if last != nil {
		t.Error(last)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestServerRefusesLargeHeaders(t *testing.T) {
	s, _ := listen(t, NewMetrics("backup", "1"))
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("%q, %v", line, err)
	}
}

func TestServerHasTimeouts(t *testing.T) {
	s, _ := listen(t, NewMetrics("backup", "1"))
	if h := s.http; h.ReadTimeout <= 0 || h.WriteTimeout <= 0 || h.IdleTimeout <= 0 || h.MaxHeaderBytes <= 0 || h.ErrorLog == nil {
		t.Errorf("%+v", h)
	}
}
