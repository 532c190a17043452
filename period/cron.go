package period

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// horizon is how far a fire is looked for, in years: the 29th of February falls on a given
// day of the week every 28 years, or 40 where a year such as 2100 has none.
const horizon = 41

// maxExpr is the longest expression, in bytes. It is stored in Consul; each minute of an
// hour, written out, has 170.
const maxExpr = 500

// A cron is an expression of crontab(5). Bit n of a set: n matches.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// both: the day of the month and the day of the week must match. Otherwise one of
	// them is enough, which is crontab(5)'s rule if neither field begins with '*'.
	both bool
}

type field struct {
	name      string
	low, high int
	names     []string // the first is low
}

var fields = []field{
	{name: "minute", low: 0, high: 59},
	{name: "hour", low: 0, high: 23},
	{name: "day of month", low: 1, high: 31},
	{name: "month", low: 1, high: 12, names: strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")},
	{name: "day of week", low: 0, high: 7, names: strings.Fields("SUN MON TUE WED THU FRI SAT")},
}

var macros = map[string]string{
	"@YEARLY":   "0 0 1 1 *",
	"@ANNUALLY": "0 0 1 1 *",
	"@MONTHLY":  "0 0 1 * *",
	"@WEEKLY":   "0 0 * * 0",
	"@DAILY":    "0 0 * * *",
	"@MIDNIGHT": "0 0 * * *",
	"@HOURLY":   "0 * * * *",
}

// cronSpec: where the clock is changed it does as Debian's cron does (cron(8)). A job of a
// fixed time runs once in the hour that exists twice, and right after the one that doesn't
// exist. A job with '*' in the minute or the hour runs by what the clock shows.
func cronSpec(expr string, zone *time.Location) (Spec, error) {
	texts, err := cronFields(expr)
	if err != nil {
		return Spec{}, err
	}
	var sets [5]uint64
	for i, text := range texts {
		if sets[i], err = fields[i].parse(text); err != nil {
			return Spec{}, fmt.Errorf("%q: %w", "cron:"+short(expr), err)
		}
	}
	star := func(i int) bool { return texts[i][0] == '*' }
	c := cron{sets[0], sets[1], sets[2], sets[3], sets[4] | sets[4]>>7&1, star(2) || star(4)}
	s := Spec{text: "cron:" + strings.Join(texts, " ") + " " + zone.String(), rule: c, zone: zone, again: star(0) || star(1)}
	if c.following(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Spec{}, fmt.Errorf("%q never fires: no month that it names has such a day; write one that exists", "cron:"+short(expr))
	}
	if s.again && s.followingShown(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}).IsZero() {
		return Spec{}, fmt.Errorf("%q never fires in %s: the clock is always put forward over it; choose another hour", "cron:"+short(expr), zone)
	}
	return s, nil
}

func cronFields(expr string) ([]string, error) {
	if len(expr) > maxExpr {
		return nil, fmt.Errorf("%q is %d bytes long, at most %d are allowed; write ranges (1-5) and steps (*/5)", "cron:"+short(expr), len(expr), maxExpr)
	}
	texts := strings.Fields(strings.ToUpper(expr))
	if len(texts) == 0 {
		return nil, fmt.Errorf("the cron expression is empty; write e.g. 'cron:15 2 * * *' for each day at 02:15")
	}
	if texts[0][0] == '@' {
		known, ok := macros[texts[0]]
		if !ok || len(texts) > 1 {
			return nil, fmt.Errorf("%q: there are @hourly, @daily, @weekly, @monthly and @yearly; or write e.g. 'cron:15 2 * * *'", "cron:"+short(expr))
		}
		return strings.Fields(known), nil
	}
	switch n := len(texts); {
	case n == 6:
		return nil, fmt.Errorf("%q has 6 fields, and seconds or years aren't known; write the 5 of crontab: minute, hour, day of month, month, day of week (for seconds use a duration such as 30s)", "cron:"+short(expr))
	case n != 5:
		return nil, fmt.Errorf("%q has %d of the 5 fields minute, hour, day of month, month, day of week; write e.g. 'cron:15 2 * * *', in quotes", "cron:"+short(expr), n)
	}
	return texts, nil
}

// parse reads a field: a list of *, N, N-N, each of the first and the last with an optional
// /STEP.
func (f field) parse(text string) (set uint64, err error) {
	for item := range strings.SplitSeq(text, ",") {
		items, err := f.parseItem(item)
		if err != nil {
			return 0, err
		}
		set |= items
	}
	return set, nil
}

func (f field) parseItem(item string) (set uint64, err error) {
	span, every, stepped := strings.Cut(item, "/")
	from, to, ranged := strings.Cut(span, "-")
	low, high, step := f.low, f.high, 1
	if span != "*" {
		if low, err = f.value(from); err != nil {
			return 0, err
		}
		high = low
	}
	if ranged {
		if high, err = f.value(to); err != nil {
			return 0, err
		}
	}
	if stepped {
		if span != "*" && !ranged {
			return 0, fmt.Errorf("the %s %q has a step but no range; write %s-%d/%s", f.name, short(item), short(from), f.high, short(every))
		}
		if step, err = strconv.Atoi(every); err != nil || step < 1 || step > f.high {
			return 0, fmt.Errorf("the step %q of the %s must be from 1 to %d", short(every), f.name, f.high)
		}
	}
	if high < low {
		return 0, fmt.Errorf("the %s range %q ends before it begins; write %s-%d,%d-%s", f.name, short(item), short(from), f.high, f.low, short(to))
	}
	for n := low; n <= high; n += step {
		set |= 1 << n
	}
	return set, nil
}

func (f field) value(text string) (int, error) {
	for i, name := range f.names {
		if text == name {
			return f.low + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("the %s %q is not a number, range (1-5), list (1,3) or step (*/5)", f.name, short(text))
	}
	if n < f.low || n > f.high {
		return 0, fmt.Errorf("the %s %d isn't from %d to %d", f.name, n, f.low, f.high)
	}
	return n, nil
}

func (c cron) latest(w time.Time) time.Time {
	hour, minute := w.Hour(), w.Minute()
	year, month, d := w.Date()
	date := time.Date(year, month, d, 0, 0, 0, 0, time.UTC)
	for first := year - horizon; date.Year() >= first; {
		if c.months>>date.Month()&1 == 0 {
			date = date.AddDate(0, 0, -date.Day())
		} else {
			if at, ok := c.latestOf(date, hour, minute); ok {
				return at
			}
			date = date.AddDate(0, 0, -1)
		}
		hour, minute = 23, 59
	}
	return time.Time{}
}

// latestOf returns the last fire of a day up to hour:minute.
func (c cron) latestOf(date time.Time, hour, minute int) (time.Time, bool) {
	if !c.onDay(date) {
		return time.Time{}, false
	}
	m := last(c.minutes, minute)
	if c.hours>>hour&1 == 0 || m < 0 {
		hour, m = last(c.hours, hour-1), last(c.minutes, 59)
	}
	return at(date, hour, m), hour >= 0
}

func (c cron) following(w time.Time) time.Time {
	w = w.Truncate(time.Minute).Add(time.Minute)
	hour, minute := w.Hour(), w.Minute()
	year, month, d := w.Date()
	date := time.Date(year, month, d, 0, 0, 0, 0, time.UTC)
	for end := year + horizon; date.Year() <= end; {
		if c.months>>date.Month()&1 == 0 {
			date = date.AddDate(0, 1, 1-date.Day())
		} else {
			if at, ok := c.firstOf(date, hour, minute); ok {
				return at
			}
			date = date.AddDate(0, 0, 1)
		}
		hour, minute = 0, 0
	}
	return time.Time{}
}

// firstOf returns the first fire of a day from hour:minute on.
func (c cron) firstOf(date time.Time, hour, minute int) (time.Time, bool) {
	if !c.onDay(date) {
		return time.Time{}, false
	}
	m := first(c.minutes, minute)
	if c.hours>>hour&1 == 0 || m > 59 {
		hour, m = first(c.hours, hour+1), first(c.minutes, 0)
	}
	return at(date, hour, m), hour <= 23
}

func (c cron) onDay(date time.Time) bool {
	inMonth, inWeek := c.days>>date.Day()&1 == 1, c.weekdays>>date.Weekday()&1 == 1
	if c.both {
		return inMonth && inWeek
	}
	return inMonth || inWeek
}

func at(date time.Time, hour, minute int) time.Time {
	return date.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
}

// last returns the greatest member up to most, or -1.
func last(set uint64, most int) int {
	return bits.Len64(set&(1<<(most+1)-1)) - 1
}

// first returns the smallest member from least on, or 64.
func first(set uint64, least int) int {
	return bits.TrailingZeros64(set >> least << least)
}
