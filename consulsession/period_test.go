package consulsession

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	dayOne = time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	dayTwo = dayOne.AddDate(0, 0, 1)
)

// daily is the period of a daily job that begins at start.
func daily(start time.Time, r Retry) Period {
	return Period{ID: start.Format(time.RFC3339), Spec: "1d", Start: start, Retry: r}
}

// Every state of the record, under each policy: who may run the period.
func TestPeriodDue(t *testing.T) {
	const me, mine = "h1", "s1" // our host, our session
	mineToday := daily(dayOne, "").ID
	build := func(id string) Period { return Period{ID: id, Spec: "id"} }
	rec := func(state, host, session string, exit int, failed ...string) PeriodRecord {
		return PeriodRecord{Schema: 1, Period: mineToday, Spec: "1d", State: state, Host: host, Session: session, Exit: exit, Failed: failed}
	}
	for _, c := range []struct {
		name   string
		r      PeriodRecord
		p      Period // with the policy left out
		want   string // by policy: on-crash, on-failure, never
		policy []Retry
	}{
		{"no record", PeriodRecord{}, daily(dayOne, ""), "run", nil},
		{"begun by another session of another host", rec(periodBegun, "h2", "s2", 0), daily(dayOne, ""), "run", []Retry{OnCrash, OnFailure}},
		{"begun by another session of another host", rec(periodBegun, "h2", "s2", 0), daily(dayOne, ""), "done never", []Retry{Never}},
		{"begun by another session of ours", rec(periodBegun, me, "s0", 0), daily(dayOne, ""), "run", []Retry{OnCrash, OnFailure}},
		{"begun by another session of ours", rec(periodBegun, me, "s0", 0), daily(dayOne, ""), "done never", []Retry{Never}},
		{"begun by this very session", rec(periodBegun, me, mine, 0), daily(dayOne, ""), "run", nil},
		{"stopped on another host", rec(periodStopped, "h2", "s2", 143), daily(dayOne, ""), "run", []Retry{OnCrash, OnFailure}},
		{"stopped on another host", rec(periodStopped, "h2", "s2", 143), daily(dayOne, ""), "done never", []Retry{Never}},
		{"stopped here", rec(periodStopped, me, "s0", 143), daily(dayOne, ""), "run", []Retry{OnCrash, OnFailure}},
		{"ended well", rec(periodEnded, "h2", "s2", 0), daily(dayOne, ""), "done", nil},
		{"ended well here", rec(periodEnded, me, "s0", 0), daily(dayOne, ""), "done", nil},
		{"failed on another host", rec(periodEnded, "h2", "s2", 1, "h2"), daily(dayOne, ""), "done", []Retry{OnCrash, Never}},
		{"failed on another host", rec(periodEnded, "h2", "s2", 1, "h2"), daily(dayOne, ""), "run", []Retry{OnFailure}},
		{"failed here", rec(periodEnded, me, "s0", 1, me), daily(dayOne, ""), "done tried", []Retry{OnFailure}},
		{"failed here, then another host died", rec(periodBegun, "h2", "s2", 0, me), daily(dayOne, ""), "done tried", []Retry{OnFailure}},
		{"failed on another host, then a third one died", rec(periodBegun, "h3", "s3", 0, "h2"), daily(dayOne, ""), "run", []Retry{OnFailure}},
		{"failed on both", rec(periodEnded, "h2", "s2", 1, me, "h2"), daily(dayOne, ""), "done tried", []Retry{OnFailure}},
		{"an earlier period ended", rec(periodEnded, "h2", "s2", 0), daily(dayTwo, ""), "run", nil},
		{"an earlier period was begun", rec(periodBegun, "h2", "s2", 0), daily(dayTwo, ""), "run", nil},
		{"an earlier period was stopped", rec(periodStopped, "h2", "s2", 0), daily(dayTwo, ""), "run", nil},
		{"a later period ended", rec(periodEnded, "h2", "s2", 0), daily(dayOne.Add(-time.Hour), ""), "missed", nil},
		{"a later period was begun", rec(periodBegun, "h2", "s2", 0), daily(dayOne.Add(-time.Hour), ""), "missed", nil},
		{"the same start in another zone's words", rec(periodEnded, "h2", "s2", 0), Period{ID: "2026-11-29T04:00:00+01:00", Spec: "1d", Start: dayOne}, "run", nil},
		{"a later period of another schedule", rec(periodEnded, "h2", "s2", 0), Period{ID: "2026-11-29T02:00:00Z", Spec: "1h", Start: dayOne.Add(-time.Hour)}, "run", nil},
		{"ended before the last one", PeriodRecord{Period: "b3", State: periodBegun, Past: []string{"b1", "b2"}}, build("b1"), "done", nil},
		{"not among the past ones", PeriodRecord{Period: "b3", State: periodEnded, Past: []string{"b1", "b2"}}, build("b4"), "run", nil},
		{"failed before the last one, on another host", afterFailure(periodEnded, "h2"), build("b1"), "run", []Retry{OnFailure}},
		{"failed before the last one, on another host", afterFailure(periodEnded, "h2"), build("b1"), "done", []Retry{OnCrash, Never}},
		{"failed before the last one, here", afterFailure(periodEnded, "h2", me), build("b1"), "done tried", []Retry{OnFailure}},
		{"failed here, then another host died, before the last one", afterFailure(periodBegun, me), build("b1"), "done tried", []Retry{OnFailure}},
		{"failed on another host, then a third one died, before the last one", afterFailure(periodBegun, "h2"), build("b1"), "run", nil},
		{"periods without an order miss nothing", PeriodRecord{Period: "2027-01-01T00:00:00Z", State: periodEnded, Spec: "id"}, build("b4"), "run", nil},
	} {
		policies := c.policy
		if policies == nil {
			policies = []Retry{OnCrash, OnFailure, Never}
		}
		for _, retry := range policies {
			t.Run(c.name+"/"+string(retry), func(t *testing.T) {
				c.p.Retry = retry
				if got := verdict(c.p.due(c.r, mine, me)); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	}
}

// afterFailure is the record of b2 after b1, which has failed on hosts and is in state.
func afterFailure(state string, hosts ...string) PeriodRecord {
	return Period{ID: "b2", Spec: "id", Retry: OnFailure}.begin(
		PeriodRecord{Schema: 1, Period: "b1", Spec: "id", State: state, Exit: 1, Failed: hosts}, "h2", 7, "s2", dayOne)
}

// verdict is an answer of due in a word.
func verdict(err error) string {
	if done, ok := errors.AsType[*DoneError](err); ok {
		return strings.TrimSpace("done " + done.Why)
	}
	if _, ok := errors.AsType[*MissedError](err); ok {
		return "missed"
	}
	if err != nil {
		return err.Error()
	}
	return "run"
}

// What is written when a period is begun: attempts and hosts are counted, ended ones remembered.
func TestPeriodBegin(t *testing.T) {
	now := dayOne.Add(7 * time.Second)
	p := daily(dayOne, OnCrash)
	begun := func(change func(*PeriodRecord)) PeriodRecord {
		r := PeriodRecord{Schema: 1, Period: p.ID, Spec: "1d", State: periodBegun, Host: "h1", Pid: 7, Session: "s1",
			Begun: "2026-11-29T03:00:07Z", Attempt: 1}
		change(&r)
		return r
	}
	yesterday := daily(dayOne.AddDate(0, 0, -1), OnCrash).ID
	for _, c := range []struct {
		name string
		r    PeriodRecord
		want PeriodRecord
	}{
		{"the first", PeriodRecord{}, begun(func(*PeriodRecord) {})},
		{"after one that ended", PeriodRecord{Schema: 1, Period: yesterday, State: periodEnded, Past: []string{"p0"}, Attempt: 4, Failed: []string{"h9"}},
			begun(func(r *PeriodRecord) { r.Past = []string{"p0", yesterday} })},
		{"after one that failed", PeriodRecord{Schema: 1, Period: yesterday, State: periodEnded, Exit: 1},
			begun(func(r *PeriodRecord) { r.Past = []string{yesterday} })},
		{"after one that died", PeriodRecord{Schema: 1, Period: yesterday, State: periodBegun, Past: []string{"p0"}},
			begun(func(r *PeriodRecord) { r.Past = []string{"p0"} })},
		{"again, by another host", PeriodRecord{Schema: 1, Period: p.ID, State: periodBegun, Host: "h2", Session: "s2", Attempt: 1, Past: []string{"p0"}},
			begun(func(r *PeriodRecord) { r.Attempt, r.Past = 2, []string{"p0"} })},
		{"again, by the same host", PeriodRecord{Schema: 1, Period: p.ID, State: periodBegun, Host: "h1", Session: "s0", Attempt: 2, Failed: []string{"h2"}},
			begun(func(r *PeriodRecord) { r.Attempt, r.Failed = 3, []string{"h2"} })},
		{"again, after a failure", PeriodRecord{Schema: 1, Period: p.ID, State: periodEnded, Host: "h2", Session: "s2", Exit: 1, Attempt: 1, Failed: []string{"h2"}},
			begun(func(r *PeriodRecord) { r.Attempt, r.Failed = 2, []string{"h2"} })},
		{"again, after a stop", PeriodRecord{Schema: 1, Period: p.ID, State: periodStopped, Host: "h2", Session: "s2", Attempt: 1},
			begun(func(r *PeriodRecord) { r.Attempt = 2 })},
		{"ours already, by an acquire without an answer", begun(func(r *PeriodRecord) { r.Begun = "2026-11-29T03:00:05Z" }),
			begun(func(r *PeriodRecord) { r.Begun = "2026-11-29T03:00:05Z" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", c.r)
			if got := p.begin(c.r, "h1", 7, "s1", now); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if after := fmt.Sprintf("%+v", c.r); after != before {
				t.Errorf("the record that it was given is now %s", after)
			}
		})
	}
}

// One that failed and comes back after another goes on where it was: each host tries it once, and
// when it has ended well it is done.
func TestPeriodFailedBeforeAnother(t *testing.T) {
	b := func(id string) Period { return Period{ID: id, Spec: "id", Retry: OnFailure} }
	var r PeriodRecord
	run := func(id, host string, exit int) {
		t.Helper()
		if err := b(id).due(r, "s", host); err != nil {
			t.Fatalf("%s on %s: %v", id, host, err)
		}
		r = b(id).begin(r, host, 7, "s", dayOne).end(1, Ended{Outcome: "exited", Exit: exit})
	}
	is := func(id, host, want string) {
		t.Helper()
		if got := verdict(b(id).due(r, "s", host)); got != want {
			t.Errorf("%s on %s: %s, want %s", id, host, got, want)
		}
	}
	run("b1", "h1", 1)
	run("b2", "h1", 0)
	is("b1", "h1", "done tried")
	run("b1", "h2", 2)
	if r.Attempt != 2 || !slices.Equal(r.Failed, []string{"h1", "h2"}) {
		t.Errorf("its second attempt: %+v", r)
	}
	is("b2", "h2", "done")
	run("b3", "h2", 0)
	is("b1", "h1", "done tried")
	is("b1", "h2", "done tried")
	run("b1", "h3", 0)
	is("b1", "h4", "done")
	run("b4", "h3", 0)
	for _, host := range []string{"h1", "h2", "h3", "h4"} {
		is("b1", host, "done")
	}
	if len(r.PastFailed) > 0 || !slices.Equal(r.Past, []string{"b2", "b3", "b1"}) {
		t.Errorf("the past: %+v", r)
	}
	// It doesn't grow without end.
	for i := range 2 * maxPast {
		r = b(fmt.Sprint(i)).begin(r, "h1", 7, "s", dayOne).end(1, Ended{Outcome: "exited", Exit: 1})
	}
	if len(r.PastFailed) != maxPast || r.PastFailed[0].Period != fmt.Sprint(maxPast-1) {
		t.Errorf("%d failures of the past, from %+v", len(r.PastFailed), r.PastFailed[0])
	}
}

// The past doesn't grow without end, and the oldest go first.
func TestPeriodPast(t *testing.T) {
	var r PeriodRecord
	for i := range 2 * maxPast {
		r = Period{ID: fmt.Sprint(i)}.begin(r, "h1", 1, fmt.Sprint("s", i), dayOne)
		r = r.end(uint64(i), Ended{Outcome: "exited"})
	}
	if len(r.Past) != maxPast || r.Past[maxPast-1] != fmt.Sprint(2*maxPast-2) || r.Past[0] != fmt.Sprint(maxPast-1) {
		t.Errorf("%d past periods, from %s to %s", len(r.Past), r.Past[0], r.Past[len(r.Past)-1])
	}
}

// Only what ran to its end has ended; what was ended by us may be run again.
func TestPeriodEnd(t *testing.T) {
	begun := daily(dayOne, OnCrash).begin(PeriodRecord{}, "h1", 7, "s1", dayOne)
	begun.Failed = []string{"h2"}
	e := Ended{Started: dayOne, Ended: dayOne.Add(90 * time.Second)}
	for _, c := range []struct {
		outcome string
		exit    int
		state   string
		failed  []string
	}{
		{"exited", 0, periodEnded, []string{"h2"}},
		{"exited", 3, periodEnded, []string{"h2", "h1"}},
		{"signaled", 139, periodEnded, []string{"h2", "h1"}},
		{"timeout", 124, periodEnded, []string{"h2", "h1"}},
		{"stopped", 143, periodStopped, []string{"h2"}},
		{"lost", -1, periodStopped, []string{"h2"}},   // the lease ended, and Consul came back
		{"failed", -1, periodStopped, []string{"h2"}}, // the guard died, and the command with it
	} {
		t.Run(fmt.Sprint(c.outcome, c.exit), func(t *testing.T) {
			e.Outcome, e.Exit = c.outcome, c.exit
			r := begun.end(42, e)
			if r.State != c.state || !slices.Equal(r.Failed, c.failed) || r.Token != 42 || r.Exit != c.exit || r.Seconds != 90 || r.Ended != "2026-11-29T03:01:30Z" {
				t.Errorf("%+v, want %s, failed on %v", r, c.state, c.failed)
			}
			if !slices.Equal(begun.Failed, []string{"h2"}) {
				t.Errorf("the record that it was given is now %+v", begun)
			}
		})
	}
}

// A clock that was set back makes no run that took less than nothing.
func TestPeriodEndBeforeItsStart(t *testing.T) {
	r := daily(dayOne, OnCrash).begin(PeriodRecord{}, "h1", 7, "s1", dayOne).end(42, Ended{Started: dayOne, Ended: dayOne.Add(-time.Hour), Outcome: "exited"})
	if r.Seconds != 0 {
		t.Errorf("it took %g s", r.Seconds)
	}
}

func TestParsePeriod(t *testing.T) {
	good := string(encode(daily(dayOne, OnCrash).begin(PeriodRecord{}, "h1", 7, "s1", dayOne)))
	for _, c := range []struct {
		value string
		why   string // empty: it can be used
	}{
		{good, ""},
		{strings.Replace(good, `"schema":1`, `"schema":2`, 1), "newer onlyone"},
		{strings.Replace(good, `"schema":1`, `"schema":0`, 1), "isn't a record"},
		{strings.Replace(good, `"schema":1`, `"schema":-1`, 1), "isn't a record"},
		{strings.Replace(good, `"begun","host"`, `"done","host"`, 1), "isn't a record"},
		{strings.Replace(good, `"begun","host"`, `"","host"`, 1), "isn't a record"},
		{strings.Replace(good, `"period":"2026-11-29T03:00:00Z"`, `"period":""`, 1), "isn't a record"},
		{good[:len(good)-1], "isn't JSON"},
		{"", "isn't JSON"},
		{"an operator's note", "isn't JSON"},
		{"null", "isn't a record"},
		{"[]", "isn't JSON"},
		{"{}", "isn't a record"},
		{`{"schema":1}`, "isn't a record"},
		{`{"schema":"1"}`, "isn't JSON"},
		{strings.Repeat("[", 20_000), "isn't JSON"},
	} {
		r, err := parsePeriod("k", []byte(c.value), true)
		bad, _ := errors.AsType[*RecordError](err)
		switch {
		case c.why == "" && (err != nil || r.Period == ""):
			t.Errorf("%.60s: %v", c.value, err)
		case c.why != "" && (bad == nil || bad.Key != "k" || !strings.Contains(bad.Why, c.why)):
			t.Errorf("%.60s: %v, want a *RecordError that says %q", c.value, err, c.why)
		}
	}
	if r, err := parsePeriod("k", nil, false); err != nil || !reflect.DeepEqual(r, PeriodRecord{}) {
		t.Errorf("no record: %+v, %v", r, err)
	}
}

// An order counts until its time is over by a clock that can be read; what can't be read has
// no end, since somebody has written the key.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		value string
		over  bool // at dayOne
		text  string
	}{
		{`{"schema":1,"by":"ann@web-1","since":"2026-11-29T01:00:00Z","until":"2026-11-29T03:00:01Z","reason":"repair"}`, false, "by ann@web-1 until 2026-11-29T03:00:01Z (repair)"},
		{`{"until":"2026-11-29T03:00:00Z"}`, true, "by an operator until 2026-11-29T03:00:00Z"},
		{`{"until":"2026-11-29T04:00:00+01:00"}`, true, "by an operator until 2026-11-29T04:00:00+01:00"},
		{`{"until":"2026-11-29T02:59:59.999Z"}`, true, "by an operator until 2026-11-29T02:59:59.999Z"},
		{`{"until":"2026-11-29T03:00:00.001Z"}`, false, "by an operator until 2026-11-29T03:00:00.001Z"},
		{`{"until":""}`, false, "by an operator"},
		{`{"until":"tomorrow"}`, false, "by an operator until tomorrow"},
		{`{"schema":9,"by":"ann@web-1"}`, false, "by ann@web-1"},
		{`{"schema":9,"until":{"at":1}}`, false, "by an operator"},
		{``, false, "by an operator"},
		{`garbage`, false, "by an operator"},
		{`null`, false, "by an operator"},
		{`[1]`, false, "by an operator"},
	} {
		o := ParseOrder([]byte(c.value))
		if got := o.Over(dayOne); got != c.over {
			t.Errorf("%s: over is %v, want %v", c.value, got, c.over)
		}
		if o.String() != c.text {
			t.Errorf("%s: %q, want %q", c.value, o, c.text)
		}
	}
}

// What is kept of periods that failed stays far below what Consul takes as a value, however many hosts there are.
func TestPeriodRecordIsBounded(t *testing.T) {
	var r PeriodRecord
	for i := range 2 * maxPast {
		p := Period{ID: fmt.Sprint("build-", i), Retry: OnFailure}
		for h := range 300 {
			r = p.begin(r, fmt.Sprintf("worker-%d.eu-central-1.compute.example.com", h), 1, "s", time.Now())
			r = r.end(1, Ended{Started: time.Now(), Ended: time.Now(), Exit: 1, Outcome: "exited"})
		}
		if n := len(encode(r)); n > 128<<10 {
			t.Fatalf("%d bytes after %d periods", n, i+1)
		}
	}
	if len(r.Failed) != 300 || len(r.PastFailed) == 0 {
		t.Errorf("kept are %d and %d", len(r.Failed), len(r.PastFailed))
	}
	for i := range 2 * maxPast { // none that failed is taken for done
		p := Period{ID: fmt.Sprint("build-", i), Retry: OnFailure}
		if err := p.due(r, "other", "a fresh host"); err != nil {
			t.Errorf("%s: %v", p.ID, err)
		}
	}
}
