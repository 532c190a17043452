package period

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// maxLength is the longest period: a hundred years, as for all durations of onlyone.
const maxLength = 36500 * day

// anchor is the reading of the clock from which all durations are counted: the first
// Monday, 00:00, of Unix time. So weeks begin on Mondays.
const anchor = 4 * 24 * 60 * 60 // 1970-01-05 in Unix seconds

var units = []struct {
	name   string
	length time.Duration
}{{"w", week}, {"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}

// Compiled when they are needed: this program starts thrice for each run.
var (
	part   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,12})([a-zµμ]*)`) })
	number = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+$`) })
)

// durationSpec: how the clock is followed depends on the length.
//
//   - Days and weeks, and what is longer than an hour and divides a day (2h, 6h, 90m): a
//     clock that is put back doesn't begin a period again, so each day has as many.
//   - What divides a day and is at most an hour: the hour that exists twice has its
//     periods twice, as a cron job of each hour runs in both.
//   - What divides no day (7h, 50m) has no place in one: it counts in UTC.
func durationSpec(text string, zone *time.Location) (Spec, error) {
	d, err := parseLength(text)
	if err != nil {
		return Spec{}, err
	}
	if d%day != 0 && day%d != 0 {
		zone = time.UTC
	}
	return Spec{text: formatLength(d) + " " + zone.String(), rule: grid(d / time.Second), zone: zone, again: d <= time.Hour}, nil
}

func parseLength(text string) (time.Duration, error) {
	switch {
	case text == "":
		return 0, fmt.Errorf("the period is empty; %s", examples)
	case number().MatchString(text):
		n := strings.TrimLeft(short(text), "0")
		if n == "" {
			return 0, fmt.Errorf("%q: a period can't be zero; %s", short(text), examples)
		}
		return 0, fmt.Errorf("%q has no unit: is it minutes or hours? Write %sm or %[2]sh", short(text), n)
	case text[0] == '-':
		return 0, fmt.Errorf("%q: a period can't be negative; %s", short(text), examples)
	case text[0] == '@' || len(strings.Fields(text)) >= 5:
		return 0, fmt.Errorf("%q looks like a cron expression; write 'cron:%[1]s'", short(text))
	}
	var sum time.Duration
	for rest := text; rest != ""; {
		m := part().FindStringSubmatch(rest)
		if m == nil {
			return 0, fmt.Errorf("%q is not a period; %s", short(text), examples)
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a period; %s", short(text), examples)
		}
		unit, err := unitOf(text, m[2])
		if err != nil {
			return 0, err
		}
		if n > int64((maxLength-sum)/unit) {
			return 0, fmt.Errorf("%q is too long, at most 36500d (a hundred years) are allowed; for once and never again use an id such as id:migration-7", short(text))
		}
		sum += time.Duration(n) * unit
		rest = rest[len(m[0]):]
	}
	if sum == 0 {
		return 0, fmt.Errorf("%q: a period can't be zero; %s", short(text), examples)
	}
	return sum, nil
}

func unitOf(text, name string) (time.Duration, error) {
	for _, u := range units {
		if u.name == name {
			return u.length, nil
		}
	}
	switch name {
	case "":
		return 0, fmt.Errorf("%q: a number is followed by no unit (w, d, h, m or s), or is not a whole one; %s", short(text), examples)
	case "ms", "us", "µs", "μs", "ns":
		return 0, fmt.Errorf("%q: a period is at least 1s, in whole seconds; %s", short(text), examples)
	case "mo", "month", "months", "y", "year", "years":
		return 0, fmt.Errorf("%q: months and years differ in length; write cron:@monthly or cron:@yearly", short(text))
	}
	return 0, fmt.Errorf("%q has the unknown unit %q (there are w, d, h, m and s); %s", short(text), short(name), examples)
}

// formatLength: 1w, 1d, 1h30m. parseLength reads it back.
func formatLength(d time.Duration) string {
	var b strings.Builder
	for _, u := range units {
		if u.length == week && d%week != 0 {
			continue // nine days are 9d, not 1w2d
		}
		if n := d / u.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.length
		}
	}
	return b.String()
}

// A grid begins a period every so many seconds, counted from anchor on the clock.
type grid int64

func (g grid) latest(w time.Time) time.Time {
	since := w.Unix() - anchor
	past := since % int64(g)
	if past < 0 {
		past += int64(g)
	}
	return time.Unix(w.Unix()-past, 0).UTC()
}

func (g grid) following(w time.Time) time.Time {
	return time.Unix(g.latest(w).Unix()+int64(g), 0).UTC()
}
