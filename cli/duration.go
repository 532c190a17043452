package cli

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxDuration is the longest duration that is taken: a hundred years, so that a few of them
// can be added to any clock without an overflow (an int64 of nanoseconds holds 292).
const maxDuration = 36500 * day

const (
	day  = 24 * time.Hour
	week = 7 * day
)

const durationExamples = "90s, 5m, 1h30m or 1d"

var (
	// Compiled when they are needed: this program starts thrice for each run.
	durationPart = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-zµμ]+)`)
	})
	plainNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)$`) })

	durationUnits = map[string]time.Duration{
		"ns": time.Nanosecond, "us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond, "ms": time.Millisecond,
		"s": time.Second, "sec": time.Second, "m": time.Minute, "min": time.Minute, "h": time.Hour, "d": day, "w": week,
	}
)

// parseDuration reads "90" and "1.5" (seconds), "90s", "5m", "1h30m", "1d", "2w", each with
// an optional sign. A fraction below a nanosecond is cut off.
func parseDuration(s string) (time.Duration, error) {
	negative := strings.HasPrefix(s, "-")
	rest := strings.TrimPrefix(s, "-")
	if !negative {
		rest = strings.TrimPrefix(s, "+")
	}
	if len(rest) > 100 {
		return 0, fmt.Errorf("%q is not a duration; use e.g. %s", rest[:10]+"...", durationExamples)
	}
	if plainNumber().MatchString(rest) {
		rest += "s"
	}
	if rest == "" {
		return 0, fmt.Errorf("%q is not a duration; use e.g. %s", s, durationExamples)
	}
	sum := new(big.Rat)
	for rest != "" {
		m := durationPart().FindStringSubmatch(rest)
		if m == nil {
			if plainNumber().MatchString(rest) {
				return 0, fmt.Errorf("%q ends in a number without a unit; use e.g. %s", s, durationExamples)
			}
			return 0, fmt.Errorf("%q is not a duration; use e.g. %s", s, durationExamples)
		}
		unit, ok := durationUnits[m[2]]
		if !ok {
			return 0, fmt.Errorf("%q has the unknown unit %q (there are ms, s, m, h, d and w); use e.g. %s", s, m[2], durationExamples)
		}
		n, ok := new(big.Rat).SetString(strings.TrimSuffix(m[1], "."))
		if !ok {
			return 0, fmt.Errorf("%q is not a duration; use e.g. %s", s, durationExamples)
		}
		sum.Add(sum, n.Mul(n, new(big.Rat).SetInt64(int64(unit))))
		rest = rest[len(m[0]):]
	}
	if sum.Cmp(new(big.Rat).SetInt64(int64(maxDuration))) > 0 {
		return 0, fmt.Errorf("%q is too long; at most %s (a hundred years)", s, formatDuration(maxDuration))
	}
	d := time.Duration(new(big.Int).Quo(sum.Num(), sum.Denom()).Int64())
	if negative {
		d = -d
	}
	return d, nil
}

// formatDuration prints a duration as one would type it: "1d2h", "1m30s", "250ms".
// parseDuration reads it back unchanged.
func formatDuration(d time.Duration) string {
	if d > -time.Second && d < time.Second {
		return d.String()
	}
	var b strings.Builder
	left := uint64(d)
	if d < 0 {
		b.WriteByte('-')
		left = -left // of the smallest int64, too
	}
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := left / uint64(u.d); n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			left %= uint64(u.d)
		}
	}
	if left > 0 {
		b.WriteString(strconv.FormatUint(left/uint64(time.Second), 10))
		if frac := left % uint64(time.Second); frac > 0 {
			b.WriteString("." + strings.TrimRight(fmt.Sprintf("%09d", frac), "0"))
		}
		b.WriteByte('s')
	}
	return b.String()
}

// A durationValue is the value of a flag that takes a duration. Negative ones are refused,
// and zero unless zeroOK.
type durationValue struct {
	d      time.Duration
	zeroOK bool
}

func (v *durationValue) Set(s string) error {
	d, err := parseDuration(strings.TrimSpace(s))
	switch {
	case err != nil:
		return err
	case d < 0:
		return fmt.Errorf("%q is negative; use e.g. %s", s, durationExamples)
	case d == 0 && !v.zeroOK:
		return fmt.Errorf("%q is not more than zero; use e.g. %s", s, durationExamples)
	}
	v.d = d
	return nil
}

func (v *durationValue) String() string {
	if v == nil {
		return ""
	}
	return formatDuration(v.d)
}
